"""What a start prints: how far it is, then where everything is, what a crash can cost, and how to
send a first message."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from skylarkmq import __version__, kernel
from skylarkmq.broker.config.settings import FAST_PORT_DISTANCE, BrokerConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.progress import StartEnded, progress_text

if TYPE_CHECKING:  # the supervisor of several processes loads neither
    from skylarkmq.broker.controller import BrokerController
    from skylarkmq.broker.namesrv.controller import NamesrvController

QUIET_SIZE: Final = 64 << 20
"""Bytes of work below which nothing is shown: it is done before it could be read."""
_CLEAR_LINE: Final = "\r\x1b[K"

Address = tuple[str, int]


def bound_text(address: Address) -> str:
    """Return `host:port`, as it is bound."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def text_of(address: Address) -> str:
    """Return `host:port`, with a host that this machine can connect to."""
    host, port = address
    return bound_text(("127.0.0.1" if host in ("0.0.0.0", "::", "*") else host, port))


def loss_window_ms(config: StoreConfig) -> int:
    """Return how many ms of acknowledged messages a power cut can take, beside a sync's time."""
    if config.flush_disk_type == "SYNC_FLUSH":
        return 0
    window = config.flush_interval_commit_log
    if config.flush_commit_log_least_pages:  # fewer dirty pages wait for the thorough flush
        window = max(window, config.flush_commit_log_thorough_interval)
    if config.transient_store_pool_enable:
        window += _commit_window_ms(config)
    return window


def _commit_window_ms(config: StoreConfig) -> int:
    return max(config.commit_interval_commit_log, config.commit_commit_log_thorough_interval)


def loss_window(config: StoreConfig) -> str:
    """Return what acknowledged messages survive, in one sentence."""
    window = loss_window_ms(config)
    if not window:
        return "SYNC_FLUSH: a message is acknowledged once it is on the disk; no crash takes it"
    killed = "none"
    if config.transient_store_pool_enable:
        killed = f"the last {_commit_window_ms(config)} ms: they are in the pool alone"
    return (
        f"ASYNC_FLUSH every {config.flush_interval_commit_log} ms: a power cut or kernel crash can "
        f"take the last {window} ms of acknowledged messages (and a sync's time), a killed process "
        f"{killed}"
    )


def kernel_text() -> str:
    """Return which path the work of each message takes, and why."""
    return kernel.road if kernel.compiled is not None else f"{kernel.road}: {kernel.why_pure}"


def tls_text(config: TlsConfig) -> str:
    """Return who may speak TLS here, and by which certificate, in one line."""
    if config.tls_server_mode == "disabled":
        return "disabled"
    certificate = "no certificate: refused"
    if config.tls_server_cert_path is not None:
        certificate = str(config.tls_server_cert_path)
    elif config.tls_test_mode_enable:
        certificate = "a certificate for this run, made when a client asks"
        if find_spec("cryptography") is None:
            certificate = "no certificate (the extra tls makes one): refused"
    clients = config.tls_server_need_client_auth
    asked = "" if clients == "none" else f"; certificates of clients: {clients}"
    return f"{config.tls_server_mode}, {certificate}{asked}"


def metrics_url(address: Address, tls: TlsConfig) -> str:
    """Return where a scrape finds the metrics."""
    scheme = "https" if tls.tls_server_mode == "enforcing" else "http"
    return f"{scheme}://{text_of(address)}/metrics"


def namesrv_banner(controller: NamesrvController, without_effect: list[str]) -> str:
    """Return what a name server alone prints."""
    lines = [f"SkylarkMQ {__version__}: the name server is ready"]
    lines.append(f"  name server  {text_of(controller.listen_address)}")
    lines.append(f"  TLS          {tls_text(controller.config.tls)}")
    if without_effect:
        lines.append(f"  no effect    {', '.join(without_effect)}")
    return "\n".join(lines)


def namesrv_ready_fields(
    controller: NamesrvController, without_effect: list[str]
) -> dict[str, Any]:
    """Return a name server's banner for machines; keys stay as they are."""
    fields: dict[str, Any] = {
        "event": "ready",
        "version": __version__,
        "namesrvAddr": text_of(controller.listen_address),
        "tlsMode": controller.config.tls.tls_server_mode,
    }
    if without_effect:
        fields["withoutEffect"] = without_effect
    return fields


def ready_fields(
    controller: BrokerController, ready_s: float, without_effect: list[str]
) -> dict[str, Any]:
    """Return the banner for machines; keys stay as they are."""
    config = controller.config
    fields: dict[str, Any] = {
        "event": "ready",
        "version": __version__,
        "broker": config.broker_name,
        "brokerId": config.broker_id,
        "role": _role(config),
        "brokerAddr": str(controller.advertised),
        "listenAddr": bound_text(controller.listen_address),
    }
    if controller.namesrv_address is not None:
        fields["namesrvAddr"] = text_of(controller.namesrv_address)
    if controller.grpc_address is not None:
        fields["grpcAddr"] = text_of(controller.grpc_address)
    if controller.metrics_address is not None:
        fields["metricsAddr"] = text_of(controller.metrics_address)
    fields["storePathRootDir"] = str(config.store.store_path_root_dir.absolute())
    fields["flushDiskType"] = config.store.flush_disk_type
    fields["lossWindowMs"] = loss_window_ms(config.store)
    fields["tlsMode"] = config.tls.tls_server_mode
    fields["kernel"] = kernel.road
    fields["readyS"] = round(ready_s, 3)
    if without_effect:
        fields["withoutEffect"] = without_effect
    return fields


def _role(config: BrokerConfig) -> str:
    if config.is_replica:
        return "replica"
    return "slave" if config.store.is_slave else "master"


def banner(controller: BrokerController, ready_s: float, without_effect: list[str]) -> str:
    """Return the banner for people."""
    return "\n".join(_lines(controller, ready_s, without_effect))


def _lines(
    controller: BrokerController, ready_s: float, without_effect: list[str]
) -> Iterator[str]:
    config = controller.config
    fast = controller.listen_address[1] - FAST_PORT_DISTANCE
    yield f"SkylarkMQ {__version__} is ready after {ready_s:.2f} s"
    listening = bound_text(controller.listen_address)
    yield f"  broker       {listening} (fast port {fast}), {config.broker_name},"
    yield f"               told to clients as {controller.advertised}"
    if config.store.is_slave:
        yield f"  role         slave {config.broker_id} of {config.broker_name}"
    if config.is_replica:
        yield f"  role         replica {config.broker_id} of {config.broker_name}; its replicas"
        yield f"               elect their master through {config.controller_endpoints}"
    if controller.namesrv_address is not None:
        yield f"  name server  {text_of(controller.namesrv_address)}"
    if config.namesrv_addr:
        yield f"  registers    with {config.namesrv_addr}"
    if controller.grpc_address is not None:
        yield f"  gRPC         {text_of(controller.grpc_address)}, for clients of RocketMQ 5"
    if controller.metrics_address is not None:
        yield f"  metrics      {metrics_url(controller.metrics_address, config.tls)}"
    yield f"  data         {config.store.store_path_root_dir.absolute()}"
    yield f"  flush        {loss_window(config.store)}"
    yield f"  TLS          {tls_text(config.tls)}"
    yield f"  kernel       {kernel_text()}"
    if without_effect:
        yield f"  no effect    {', '.join(without_effect)}"
    namesrv = _first_namesrv(controller, config)
    may_send = config.tls.tls_server_mode != "enforcing" and not config.store.is_slave
    if namesrv is not None and may_send:
        yield from first_message(namesrv)


def _first_namesrv(controller: BrokerController, config: BrokerConfig) -> str | None:
    if controller.namesrv_address is not None:
        return text_of(controller.namesrv_address)
    return config.namesrv_addr


def first_message(namesrv: str) -> Iterator[str]:
    """Yield the lines that tell how to send and read a first message."""
    command = _command()
    yield ""
    yield "Send a first message, and read it:"
    yield f"  {command} send TopicTest 'hello' --namesrv '{namesrv}'"
    yield f"  {command} consume TopicTest --group demo --from first --max 1 --namesrv '{namesrv}'"
    yield f"or from Python ({_python()}):"
    yield "  import asyncio; from skylarkmq.client import Message, Producer"
    yield (
        f'  async def hello(): p = Producer(namesrv_addr="{namesrv}"); await p.start(); '
        'print(await p.send(Message("TopicTest", "hello"))); await p.stop()'
    )
    yield "  asyncio.run(hello())"


def _command() -> str:
    """Return how this user calls us: the plain name when the shell finds it, else its place."""
    if _is_on_path("skylarkmq"):
        return "skylarkmq"
    beside = Path(sys.executable).with_name("skylarkmq")
    if not beside.exists():
        return f"{sys.executable} -m skylarkmq.cli"
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)


def _is_on_path(command: str) -> bool:
    places = (Path(folder, command) for folder in os.get_exec_path())
    return any(place.is_file() and os.access(place, os.X_OK) for place in places)


def _python() -> str:
    try:
        return str(Path(sys.executable).relative_to(Path.cwd()))
    except ValueError:
        return sys.executable


class StartProgress:
    """A `Progress` for people; silent without a terminal. Loading thread.

    Args:
        tell: told the same, whether there is a terminal or not: systemd waits for the start.
    """

    def __init__(self, stream: TextIO, tell: Callable[[str], None] | None = None) -> None:
        self._stream = stream
        self._tell = tell
        self._shows = stream.isatty()
        self._shown = -1  # percent
        self.stopped = False

    def stop(self) -> None:
        """End the start at its next step. From a handler of signals, too."""
        self.stopped = True

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far it is, when that has changed by a percent.

        Raises:
            StartEnded: `stop` was called.
        """
        if self.stopped:
            raise StartEnded
        percent = 100 * done // total if total else 100
        if self._tell is not None:
            self._tell(f"{what}: {percent} %")
        if self._shows and total >= QUIET_SIZE and percent != self._shown:
            self._shown = percent
            # Back to the front, so that a log line covers it.
            self._write(f"{_CLEAR_LINE}{progress_text(what, done, total)}\r")

    def end(self) -> None:
        """Take the line away."""
        if self._shown >= 0:
            self._shown = -1
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
