"""A durable broker inside the application: no server to run, as SQLite is inside a program.

    async with Broker("data/queue") as broker, Client(broker.namesrv_addr) as client:
        ...

    with Broker("data/queue") as broker, sync.Client(broker.namesrv_addr) as client:
        ...

The folder is a store like that of `skylarkmq serve --dev`, which can serve it later. Broker and
name server run on one thread and event loop of their own and listen on 127.0.0.1, so a slow handler
of the application does not hold them up; they share the interpreter's lock with it. The
application's signals, log settings and garbage collection are left alone.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from types import TracebackType
from typing import Final

from skylarkmq.broker.base.logs import RateLimit
from skylarkmq.broker.base.process import connections_possible, loop_factory
from skylarkmq.broker.config.config_file import PROFILES, Sources, load_broker_config
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.start.banner import text_of
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import Files
from skylarkmq.common.settings import checked
from skylarkmq.loop_thread import LoopThread
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.progress import StartEnded

__all__ = ["Broker", "StoreError", "StoreLockedError"]

Settings = Mapping[str, str | int | bool]
"""Keys of a `broker.conf` and their values: {"flushDiskType": "SYNC_FLUSH"}."""

THREAD_NAME: Final = "skylarkmq-broker"
_DEFAULTS: Final[Settings] = {
    **{key: text for key, text in PROFILES["dev"].items() if key != "storePathRootDir"},
    "listenPort": 0,
    "metricsPromExporterPort": "off",
    # The application holds the interpreter's lock while it computes: no reason to refuse a message.
    "brokerFastFailureEnable": False,
    "storeFailureExit": False,  # the process is the application's
}
_ELSEWHERE: Final[Mapping[str, str]] = {
    "storePathRootDir": "the folder is the first argument",
    "brokers": "an embedded broker is one; `skylarkmq serve --brokers` runs several",
    "controllerEndpoints": "replicas that elect their master are servers: use `skylarkmq serve`",
}
"""Keys that say what this process has otherwise, or cannot have."""
_LOGGERS: Final = ("skylarkmq.broker.", "skylarkmq.store.")


class Broker:
    """A broker with its name server in this process; for one `async with`, or one `with`.

    Attributes:
        folder: of the store; it is made where it does not exist.
        namesrv_addr: `host:port` for clients, of this process and of others on this machine.
    """

    @checked
    def __init__(
        self,
        folder: str | Path,
        *,
        port: int = 0,
        settings: Settings | None = None,
        files: Files | None = None,
    ) -> None:
        """Take the settings; nothing is opened yet.

        Args:
            port: of the name server, the address that clients take; 0 picks a free one. Give one
                where other processes are to connect.
            settings: keys of a `broker.conf`; they win over those of `skylarkmq serve --dev`.
            files: the disk; None: the machine's. A test hands in one that fails.

        Raises:
            ConfigError: a key or a value that a broker does not take.
            TypeError: an argument of another type.
        """
        self.folder = Path(folder).absolute()
        self.namesrv_addr = ""
        if not isinstance(settings, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Broker: settings is a dict of keys and values, not {settings!r}")
        if not 0 <= port < 65536:
            raise ConfigError("port", port, "use 0 to 65535")
        for key, value in (settings or {}).items():
            if key in _ELSEWHERE:
                raise ConfigError(key, value, _ELSEWHERE[key])
        keys = {**_DEFAULTS, "namesrvListenPort": port, **(settings or {})}
        config = configuration(self.folder, keys)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # it is the application's to raise
        servers = config.server_count(with_namesrv=True)
        connections = connections_possible(config.max_connections, limit, servers)
        self._config = replace(config, max_connections=connections)
        self._thread = LoopThread(self._serve, THREAD_NAME, loop_factory())
        self._files = files
        self._store: MessageStore | None = None
        self._is_ending = False
        self._block: asyncio.Task[object] | None = None  # of `async with`
        self._loop: asyncio.AbstractEventLoop | None = None  # that it runs in
        self._cancelling = 0
        self._cancelled = False

    @property
    def failure(self) -> StoreError | None:
        """Why the store takes no more messages: its disk has failed. None while all is well."""
        cause = None if self._store is None else self._store.failure
        if cause is None:
            return None
        failure = StoreError(
            f"the store {self.folder} has failed: {cause}; what was acknowledged is in it: open "
            "it again when the cause is gone"
        )
        failure.__cause__ = cause
        return failure

    def __enter__(self) -> Broker:
        """Recover the store and serve; in the block `failure` tells of a store that fails.

        Raises:
            StoreLockedError: another process has the folder.
            StoreError: the folder cannot be used as it is.
            OSError: the port is taken, or the disk failed.
        """
        self._thread.start()
        try:
            self.namesrv_addr = self._thread.started.result()
        except BaseException:
            self._stop()
            self._thread.join()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, and make everything durable.

        Raises:
            StoreError: the store has failed, and the block has raised nothing itself.
        """
        self._stop()
        self._thread.join()
        self._thread.ended.result()
        if error is None and (failure := self.failure) is not None:
            raise failure

    async def __aenter__(self) -> Broker:
        """Recover the store and serve; a store that fails cancels the block, and it raises why.

        Raises:
            As `__enter__`.
        """
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        try:
            self.namesrv_addr = await asyncio.shield(asyncio.wrap_future(self._thread.started))
        except BaseException:
            await self._stopped()
            raise
        self._block = asyncio.current_task()
        self._cancelling = self._block.cancelling() if self._block is not None else 0
        if self.failure is not None:  # meanwhile
            self._cancel()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As `__exit__`."""
        block, self._block = self._block, None
        cancelled: asyncio.CancelledError | None = None
        try:
            await self._stopped()
        except asyncio.CancelledError as caught:
            cancelled = caught
        ours = self._cancelled and block is not None and block.uncancel() <= self._cancelling
        is_hidden = error is None or (ours and isinstance(error, asyncio.CancelledError))
        if is_hidden and (failure := self.failure) is not None:
            raise failure
        if cancelled is not None and not ours:
            raise cancelled

    @asynccontextmanager
    async def _serve(self) -> AsyncGenerator[str]:
        """Run the broker; gives the name server's address. The broker's thread."""
        controller = BrokerController(self._config, with_namesrv=True, files=self._files)
        try:
            await controller.start(self._go_on)
        except StoreLockedError:
            port = self._config.namesrv_listen_port
            place = "its address (`port=` of one that is embedded)"
            if port:
                place = text_of((self._config.bind_address, port))
            raise StoreLockedError(
                f"{self.folder} is in use by another broker, embedded or of `skylarkmq serve`: "
                f"be a client of that one at {place}"
            ) from None
        with limited_logs():  # now that the modules of gRPC are loaded, too
            try:
                self._store = controller.parts.store
                self._store.failure_listeners.append(self._failed)
                assert controller.namesrv_address is not None
                yield text_of(controller.namesrv_address)
            finally:
                await controller.stop()

    def _go_on(self, what: str, done: int, total: int) -> None:
        if self._is_ending:
            raise StartEnded

    def _failed(self, cause: BaseException) -> None:
        """Cancel the application's block. The broker's thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # that loop has ended
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._block is not None and not self._cancelled:
            self._cancelled = self._block.cancel()

    def _stop(self) -> None:
        self._is_ending = True
        self._thread.stop()

    async def _stopped(self) -> None:
        """Stop; who is cancelled meanwhile is so after the end."""
        self._stop()
        ended = asyncio.wrap_future(self._thread.ended)
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.shield(ended)
            except asyncio.CancelledError as error:
                cancelled = error
        self._thread.join()
        ended.result()
        if cancelled is not None:
            raise cancelled


@contextmanager
def limited_logs() -> Generator[None]:
    """Bound the lines that a peer can provoke, as the daemon does; handlers are not ours here."""
    limit = RateLimit()
    names = [name for name in [*logging.root.manager.loggerDict] if name.startswith(_LOGGERS)]
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(limit)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(limit)


def configuration(root: Path, keys: Settings) -> BrokerConfig:
    """Return the configuration of a broker inside this process; the environment has no say.

    Args:
        root: the folder of the store.

    Raises:
        ConfigError: a key that is not known, with the nearest one, or a value it does not take.
    """
    keys = {"storePathRootDir": str(root), **keys}
    lines = [f"{key}={_text(value)}" for key, value in keys.items()]
    try:
        return load_broker_config(Sources(None, {}, lines, root, gethostname())).config
    except ConfigError as error:  # there is no `--set` that it could stand in
        raise ConfigError(error.key, error.value, error.cure) from None


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
