"""One server in this process, from its start until it is told to stop.

A server below a supervisor (`fleet/`) tells it when it is ready, and prints no banner of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.logs import FIELDS, LogFormat
from skylarkmq.broker.base.process import (
    collect_rarely,
    connections_possible,
    give_memory_back,
    keep_freed_memory,
    raise_file_limit,
)
from skylarkmq.broker.config.config_file import ConfigOrigin, Loaded
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.controller import EXIT_STORE_FAILED, BrokerController, MetricsPages
from skylarkmq.broker.fleet.console import ConsoleProcess
from skylarkmq.broker.fleet.link import SupervisorLink
from skylarkmq.broker.fleet.plan import reachable
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.start.banner import (
    StartProgress,
    banner,
    namesrv_banner,
    namesrv_ready_fields,
    ready_fields,
)
from skylarkmq.broker.start.service_manager import ServiceManager
from skylarkmq.broker.start.stop_signals import StopSignals
from skylarkmq.common.clock import Clock
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.crc import using_extension
from skylarkmq.common.first_use import on_first_use
from skylarkmq.store.progress import StartEnded

if TYPE_CHECKING:
    import skylarkmq.broker.fleet.run as fleet
    import skylarkmq.broker.replica_broker as replica_broker
else:  # with a console; where replicas elect their master
    fleet = on_first_use("skylarkmq.broker.fleet.run")
    replica_broker = on_first_use("skylarkmq.broker.replica_broker")

log = logging.getLogger("skylarkmq")

KNOWN_LIMIT_S: Final = 3.0
"""For a name server that answers; one that is away does not hold up the start."""


async def serve_names(
    loaded: Loaded[NamesrvConfig], log_format: LogFormat, link: SupervisorLink | None
) -> int:
    """Run a name server and return the exit code."""
    raise_file_limit()
    clock = SystemClock(asyncio.get_running_loop())
    stop = StopSignals(clock, has_supervisor=link is not None).install().asked
    manager = service_manager(link)
    controller = NamesrvController(loaded.config, clock)
    await controller.start()
    _answer_by_loop(link)
    fields = namesrv_ready_fields(controller, loaded.without_effect)
    _tell_ready(fields, namesrv_banner(controller, loaded.without_effect), log_format, link)
    manager.ready("name server at {}:{}".format(*controller.listen_address), clock)
    await stop.wait()
    log.info("stopping")
    manager.stopping()
    await controller.stop()
    manager.close()
    return 0


async def serve_broker(
    loaded: Loaded[BrokerConfig],
    log_format: LogFormat,
    origin: ConfigOrigin,
    link: SupervisorLink | None,
    *,
    with_namesrv: bool,
    console: str | None = None,
) -> int:
    """Run a broker and return the exit code.

    Args:
        console: where a console is to listen that runs beside it; None: without.
    """
    _require_names_elsewhere(loaded.config, with_namesrv=with_namesrv)
    clock = SystemClock(asyncio.get_running_loop())
    started_s = clock.monotonic()
    manager = service_manager(link)
    progress = StartProgress(sys.stderr, manager.starting)
    signals = StopSignals(clock, progress.stop, has_supervisor=link is not None)
    stop = signals.install().asked
    if not using_extension():
        log.warning(
            "crcmod was installed without its compiled part: our own small files are slower"
        )
    loaded = _leave_room_for_files(loaded, loaded.config.server_count(with_namesrv=with_namesrv))
    keep_freed_memory()
    controller = _controller(loaded.config, origin, link, with_namesrv=with_namesrv)
    try:
        await controller.start(progress)
    except StartEnded:
        log.info("stopped before the start was over")
        return 0
    finally:
        progress.end()
    _answer_by_loop(link)
    collect_rarely()
    give_memory_back(kept_size=0)  # what reading the store took
    if progress.stopped:
        stop.set()
    elif link is not None:  # who waits for the fleet makes topics then, on all of its brokers
        await controller.known(KNOWN_LIMIT_S)
    ready_s = clock.monotonic() - started_s
    life = controller if isinstance(controller, BrokerController) else controller.life
    fields = ready_fields(life, ready_s, loaded.without_effect)
    _tell_ready(fields, banner(life, ready_s, loaded.without_effect), log_format, link)
    manager.ready(f"{life.config.broker_name} at {life.advertised}", clock)
    return await _serve_until(stop, controller, _console(console, life, clock), manager)


def _require_names_elsewhere(config: BrokerConfig, *, with_namesrv: bool) -> None:
    """Refuse a replica with a name server in its own process."""
    if with_namesrv and config.is_replica:
        raise ConfigError(
            "controllerEndpoints",
            config.controller_endpoints,
            "run `skylarkmq broker`, and name servers of their own (`skylarkmq namesrv`): they "
            "must be there while a replica starts anew",
        )


def _controller(
    config: BrokerConfig, origin: ConfigOrigin, link: SupervisorLink | None, *, with_namesrv: bool
) -> BrokerController | replica_broker.ReplicaBroker:
    """Return the broker, with the supervisor's messages connected to it; nothing is opened yet."""
    names: Literal["thread", False] = "thread" if with_namesrv else False
    pages: MetricsPages = "listen" if link is None else "adopt"

    def make(config: BrokerConfig) -> BrokerController:
        return BrokerController(config, with_namesrv=names, origin=origin, metrics=pages)

    # A replica makes a new controller whenever its role changes; any other broker has one.
    controller = replica_broker.ReplicaBroker(config, make) if config.is_replica else make(config)
    if link is not None:
        link.on_page = controller.adopt_page
        # The supervisor's messages arrive on a thread of their own.
        call_soon = asyncio.get_running_loop().call_soon_threadsafe
        link.on_namesrv = partial(call_soon, controller.register_again)
    return controller


async def _serve_until(
    stop: asyncio.Event,
    controller: BrokerController | replica_broker.ReplicaBroker,
    beside: ConsoleProcess,
    manager: ServiceManager,
) -> int:
    """Wait for the order to stop or for the broker's own end, stop, and return the exit code."""
    ended = controller.ended
    assert ended is not None
    ended.add_done_callback(lambda _: stop.set())
    await stop.wait()
    await beside.stop()  # first: it asks this broker
    code = ended.result() if ended.done() else 0
    if not code:
        log.info("stopping")
    manager.stopping()
    await controller.stop()
    manager.close()
    return code or (EXIT_STORE_FAILED if controller.failed else 0)


def _console(place: str | None, controller: BrokerController, clock: Clock) -> ConsoleProcess:
    """Return the console beside a broker with a name server, which runs if a place is given."""
    command = () if place is None else fleet.COMMAND
    beside = ConsoleProcess(command, place or "", os.environ, clock)
    if place is not None and controller.namesrv_address is not None:
        beside.start(reachable(*controller.namesrv_address))
    return beside


def service_manager(link: SupervisorLink | None) -> ServiceManager:
    """Return the way to systemd: of a process that nobody but the unit has started."""
    return ServiceManager(os.environ if link is None else {})


def _answer_by_loop(link: SupervisorLink | None) -> None:
    """Let the loop answer the supervisor's questions, now that no start holds it up."""
    if link is not None:
        link.on_ask = partial(asyncio.get_running_loop().call_soon_threadsafe, link.alive)


def _tell_ready(
    fields: dict[str, Any], text: str, log_format: LogFormat, link: SupervisorLink | None
) -> None:
    if link is not None:
        log.info("ready")
        link.ready(fields)
    elif log_format == "json":
        log.info("ready", extra={FIELDS: fields})
    else:
        click.echo(text, err=True)


def _leave_room_for_files(loaded: Loaded[BrokerConfig], servers: int) -> Loaded[BrokerConfig]:
    """Raise the limit of open files, and keep the connections below it."""
    config, limit = loaded.config, raise_file_limit()
    possible = connections_possible(config.max_connections, limit, servers)
    if possible == config.max_connections:
        return loaded
    if "maxConnections" in loaded.settings:  # the default is an upper bound; `--check` tells
        log.warning("maxConnections is %d here: there may be %d open files", possible, limit)
    return replace(loaded, config=replace(config, max_connections=possible))
