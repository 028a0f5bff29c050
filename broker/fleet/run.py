"""Wires a fleet: the plan, the supervisor's members, the pages and the banner."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import click

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.logs import FIELDS, LogFormat
from skylarkmq.broker.config.config_file import Loaded
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.fleet.banner import fleet_fields, fleet_lines
from skylarkmq.broker.fleet.child import Child
from skylarkmq.broker.fleet.console import ConsoleProcess
from skylarkmq.broker.fleet.hang_watch import HangWatch, why_spared
from skylarkmq.broker.fleet.pages import FleetPages
from skylarkmq.broker.fleet.plan import (
    NAMESRV_NAME,
    Member,
    keys_for_namesrv,
    members_of,
    namesrv_environment,
    reachable,
)
from skylarkmq.broker.fleet.supervisor import ProcessSlot, Supervisor
from skylarkmq.broker.pages import drain_page
from skylarkmq.broker.pages.http import PageServer
from skylarkmq.broker.start.service_manager import ServiceManager

log = logging.getLogger(__name__)

MODULE: Final = "skylarkmq.cli"


def python_command(search_path: Sequence[str], folder: str) -> list[str]:
    """Return how a process of a fleet is started, up to its own words.

    `-m` alone would look for modules in the working folder first, where anybody's may lie.

    Args:
        search_path: where the supervisor looks for modules.
        folder: the working folder.
    """
    safe = [] if {"", folder} & {*search_path} else ["-P"]
    return [sys.executable, *safe, "-m", MODULE]


COMMAND: Final = tuple(python_command(sys.path, os.getcwd()))


@dataclass(frozen=True)
class CommandLine:
    """How the user has called us, so that each broker gets the same."""

    command: str  # serve or broker
    words: Sequence[str]  # all options but those of logs
    log_format: LogFormat
    log_level: str

    @property
    def log_words(self) -> list[str]:
        """The options of logs."""
        return ["--log-format", self.log_format, "--log-level", self.log_level]


async def run_fleet(
    loaded: Loaded[BrokerConfig],
    line: CommandLine,
    *,
    with_namesrv: bool,
    console: str | None = None,
) -> int:
    """Run all processes until a signal, and return the exit code.

    Args:
        console: where a console is to listen that runs beside them; None: without.

    Raises:
        ConfigError: they cannot have the ports and folders that they would need.
        StartFailedError: one of them cannot start; all others have been stopped.
        OSError: the port of the metrics is taken.
    """
    loop = asyncio.get_running_loop()
    clock, config = SystemClock(loop), loaded.config
    members = members_of(config)
    supervisor = Supervisor(clock)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    pages = _pages(supervisor, config, clock)
    limit_s = config.hung_process_timeout_seconds
    watch = HangWatch(lambda: supervisor.slots, limit_s, clock, why_spared)
    manager = ServiceManager(os.environ)
    started_s = clock.monotonic()
    address = None
    if config.metrics_prom_exporter_port is not None:
        address = await pages.listen(config.metrics_host, config.metrics_prom_exporter_port)
    watching = asyncio.create_task(watch.run(), name="hang-watch")
    beside = ConsoleProcess(COMMAND, console or "", os.environ, clock)
    try:
        # The brokers need to know where it listens, so it starts before them.
        namesrv = await _start_namesrv(supervisor, config, line, clock) if with_namesrv else None
        keys = {} if namesrv is None else keys_for_namesrv(config, namesrv)
        slots = [
            ProcessSlot(member.name, partial(_launch_broker, line, member, keys), clock)
            for member in members
        ]
        # A signal may have come while the name server started.
        if not supervisor.stopping.is_set() and await supervisor.start_brokers(slots):
            ready_s = clock.monotonic() - started_s
            _tell_ready(supervisor, loaded, line.log_format, namesrv, address, ready_s)
            if console is not None and namesrv is not None:
                beside.start(namesrv)
            manager.ready(f"{len(supervisor.brokers)} brokers", clock)
            await supervisor.stopping.wait()
        log.info("stopping")
    finally:
        manager.stopping()
        watching.cancel()
        await beside.stop()
        code = await supervisor.drain()
        pages.close()  # after that: probes are answered while brokers drain
        manager.close()
    return code


def _pages(supervisor: Supervisor, config: BrokerConfig, clock: SystemClock) -> PageServer:
    """Return what serves the pages of all processes on one port; it does not listen yet."""
    pages = FleetPages(supervisor, clock).pages()
    return PageServer(pages, clock, config.tls, {drain_page.PATH: drain_page.METHODS})


async def _start_namesrv(
    supervisor: Supervisor, config: BrokerConfig, line: CommandLine, clock: SystemClock
) -> str | None:
    """Start the name server; return where brokers reach it, None when the fleet stops instead."""
    port = config.namesrv_listen_port

    async def launch() -> Child:
        words = [*COMMAND, "namesrv", *line.log_words]
        return await Child.start(words, namesrv_environment(config, port, os.environ))

    report = await supervisor.start_namesrv(ProcessSlot(NAMESRV_NAME, launch, clock))
    if report is None:
        return None
    port = int(report["namesrvAddr"].rpartition(":")[2])  # of a free one: the same ever after
    return reachable(config.bind_address, port)


async def _launch_broker(line: CommandLine, member: Member, keys: Mapping[str, str]) -> Child:
    settings = {**member.keys, **keys}
    words = [part for key, text in settings.items() for part in ("--set", f"{key}={text}")]
    arguments = [*COMMAND, line.command, *line.words, *words, *line.log_words]
    return await Child.start(arguments, os.environ)


def _tell_ready(
    supervisor: Supervisor,
    loaded: Loaded[BrokerConfig],
    log_format: LogFormat,
    namesrv: str | None,
    pages: tuple[str, int] | None,
    ready_s: float,
) -> None:
    brokers = [slot.fields for slot in supervisor.brokers if slot.fields is not None]
    vain = loaded.without_effect
    if log_format == "json":
        fields = fleet_fields(brokers, namesrv, pages, ready_s, vain)
        log.info("ready", extra={FIELDS: fields})
    else:
        lines = fleet_lines(loaded.config, brokers, namesrv, pages, ready_s, vain)
        click.echo("\n".join(lines), err=True)
