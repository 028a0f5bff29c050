"""The servers' commands: `serve` (broker and name server), `broker`, `namesrv`.

Exit codes: 0 stopped as asked, 1 could not start, 2 wrong use or configuration, 74 the disk failed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from skylarkmq.broker.banner import (
    StartProgress,
    banner,
    namesrv_banner,
    namesrv_ready_fields,
    ready_fields,
)
from skylarkmq.broker.clock import SystemClock
from skylarkmq.broker.config.config_file import (
    DEFAULT_ORIGIN,
    DEV_ORIGIN,
    TLS_FILE,
    Loaded,
    Sources,
    effective_values,
    load_broker_config,
    load_namesrv_config,
)
from skylarkmq.broker.config.live_config import ConfigOrigin
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.controller import EXIT_STORE_FAILED, BrokerController
from skylarkmq.broker.exposure import why_open
from skylarkmq.broker.logs import FIELDS, LogFormat, set_up_logs
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.process import (
    collect_rarely,
    connections_possible,
    give_memory_back,
    keep_freed_memory,
    raise_file_limit,
)
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.crc import using_extension
from skylarkmq.common.errors import StoreError
from skylarkmq.store.progress import StartEnded

log = logging.getLogger("skylarkmq")

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
Command = Callable[..., None]


def server_options(command: Command) -> Command:
    """Return the options that all servers share."""
    options = (
        click.option(
            "-c",
            "--config",
            "config_path",
            type=click.Path(path_type=Path, dir_okay=False),
            help="broker.conf in Java properties form.",
        ),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any key of RocketMQ, e.g. listenPort=10911; may be repeated, the last one wins.",
        ),
        click.option("--print-config", is_flag=True, help="Print every key and end."),
        click.option(
            "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
        ),
        click.option(
            "--log-level",
            type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
            default="INFO",
            show_default=True,
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@server_options
@click.option(
    "--dev", is_flag=True, help="For a try: data in ./var/store, log files of 64 MiB, not 1 GiB."
)
def serve(**options: Any) -> None:
    """Run a broker and a name server in this process."""
    _run_broker(with_namesrv=True, **options)


@click.command()
@server_options
def broker(**options: Any) -> None:
    """Run a broker alone; it registers with every namesrvAddr."""
    _run_broker(with_namesrv=False, **options)


@click.command()
@server_options
def namesrv(
    config_path: Path | None,
    settings: tuple[str, ...],
    print_config: bool,
    log_format: LogFormat,
    log_level: str,
) -> None:
    """Run a name server alone (listenPort, 9876)."""
    loaded = _load(load_namesrv_config, config_path, settings)
    if print_config:
        _print_config(loaded)
        return
    set_up_logs(log_format, log_level)
    _tell_oddities(loaded)
    raise_file_limit()
    _run(_serve_names(loaded, log_format))


async def _serve_names(loaded: Loaded[NamesrvConfig], log_format: LogFormat) -> int:
    stop = _stop_event()
    controller = NamesrvController(loaded.config, SystemClock(asyncio.get_running_loop()))
    await controller.start()
    if log_format == "json":
        fields = namesrv_ready_fields(controller, loaded.without_effect)
        log.info("ready", extra={FIELDS: fields})
    else:
        click.echo(namesrv_banner(controller, loaded.without_effect), err=True)
    await stop.wait()
    log.info("stopping")
    await controller.stop()
    return 0


def _run_broker(
    *,
    with_namesrv: bool,
    config_path: Path | None,
    settings: tuple[str, ...],
    print_config: bool,
    log_format: LogFormat,
    log_level: str,
    dev: bool = False,
) -> None:
    loaded = _load(load_broker_config, config_path, settings, dev=dev)
    if print_config:
        _print_config(loaded)
        return
    set_up_logs(log_format, log_level, loaded.config.broker_name)
    _tell_oddities(loaded)
    if not using_extension():
        log.warning(
            "crcmod was installed without its compiled part: our own small files are slower"
        )
    loaded = _leave_room_for_files(loaded, servers=2 if with_namesrv else 1)
    keep_freed_memory()
    _run(_serve(loaded, with_namesrv, log_format, _origin_of(loaded, config_path)))


async def _serve(
    loaded: Loaded[BrokerConfig], with_namesrv: bool, log_format: LogFormat, origin: ConfigOrigin
) -> int:
    loop = asyncio.get_running_loop()
    started = loop.time()
    progress = StartProgress(sys.stderr)
    for number in STOP_SIGNALS:  # the loop answers none while it loads the store
        signal.signal(number, progress.stop)
    controller = BrokerController(loaded.config, with_namesrv=with_namesrv, origin=origin)
    try:
        await controller.start(progress)
    except StartEnded:
        log.info("stopped before the start was over")
        return 0
    finally:
        progress.end()
    collect_rarely()
    give_memory_back(kept_size=0)  # what reading the store took
    stop = _stop_event()
    if progress.stopped:
        stop.set()
    ready_s = loop.time() - started
    if log_format == "json":
        fields = ready_fields(controller, ready_s, loaded.without_effect)
        log.info("ready", extra={FIELDS: fields})
    else:
        click.echo(banner(controller, ready_s, loaded.without_effect), err=True)
    assert controller.ended is not None
    ended = controller.ended
    ended.add_done_callback(lambda _: stop.set())
    await stop.wait()
    code = ended.result() if ended.done() else 0
    if not code:
        log.info("stopping")
    await controller.stop()
    return code or (EXIT_STORE_FAILED if controller.failed else 0)


def _origin_of(loaded: Loaded[BrokerConfig], path: Path | None) -> ConfigOrigin:
    """Return the file that changes of the running broker go to, and what is stronger than it."""
    weaker = (DEFAULT_ORIGIN, DEV_ORIGIN, f"{path} line ")
    stronger = {
        key: setting.origin
        for key, setting in loaded.settings.items()
        if not setting.origin.startswith(weaker)
    }
    return ConfigOrigin(None if path is None else path.resolve(), stronger)


def _tell_oddities(loaded: Loaded[Any]) -> None:
    """Log what the start goes on with, though the user may not mean it so."""
    if loaded.unknown_variables:
        log.warning("variables that mean nothing here: %s", ", ".join(loaded.unknown_variables))
    if open_to_network := why_open(loaded.config):
        log.warning("%s", open_to_network)


def _leave_room_for_files(loaded: Loaded[BrokerConfig], servers: int) -> Loaded[BrokerConfig]:
    """Raise the limit of open files, and keep the connections below it."""
    config, limit = loaded.config, raise_file_limit()
    possible = connections_possible(config.max_connections, limit, servers)
    if possible == config.max_connections:
        return loaded
    log.warning("maxConnections is %d here: there may be %d open files", possible, limit)
    return replace(loaded, config=replace(config, max_connections=possible))


def _stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    return stop


def _load(
    load: Callable[[Sources], Loaded[Any]],
    path: Path | None,
    settings: tuple[str, ...],
    *,
    dev: bool = False,
) -> Loaded[Any]:
    home = Path(os.path.expanduser("~"))  # `~` itself where the system knows no home
    sources = Sources(path, os.environ, settings, home, socket.gethostname(), dev, TLS_FILE)
    try:
        return load(sources)
    except ConfigError as error:
        _end(EXIT_USAGE, str(error))
    except OSError as error:
        _end(EXIT_USAGE, f"cannot read {error.filename}: {error.strerror}")


def _print_config(loaded: Loaded[Any]) -> None:
    for key, value, origin in effective_values(loaded):
        click.echo(f"{key}={value}" + ("" if origin == "default" else f"  # {origin}"))


def _run(main: Coroutine[Any, Any, int]) -> None:
    """Run to the end on uvloop where it is installed, and end the process with the code."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            code = runner.run(main)
    except ConfigError as error:
        _end(EXIT_USAGE, str(error))
    except (StoreError, OSError) as error:
        _end(EXIT_FAILED, str(error))
    if code:
        sys.exit(code)


def _end(code: int, why: str) -> NoReturn:
    click.echo(f"skylarkmq: {why}", err=True)
    sys.exit(code)
