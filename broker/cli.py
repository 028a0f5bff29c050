"""The servers' commands: `serve` (broker and name server), `broker`, `namesrv`.

Exit codes: 0 stopped as asked, 1 could not start, 2 wrong use or configuration, 74 the disk failed.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from skylarkmq.broker.config.config_file import (
    DEFAULT_ORIGIN,
    DEV_ORIGIN,
    TLS_FILE,
    ConfigOrigin,
    Loaded,
    Sources,
    effective_values,
    load_broker_config,
    load_namesrv_config,
)
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.exposure import why_open
from skylarkmq.broker.fleet.link import SupervisorLink
from skylarkmq.broker.fleet.plan import NAMESRV_NAME, unserved_folders
from skylarkmq.broker.fleet.supervisor import StartFailedError
from skylarkmq.broker.logs import LogFormat, set_up_logs
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.errors import StoreError
from skylarkmq.common.first_use import on_first_use

if TYPE_CHECKING:
    import skylarkmq.broker.fleet.run as fleet
    import skylarkmq.broker.serving as serving
else:  # one of the two: a supervisor loads no broker
    fleet = on_first_use("skylarkmq.broker.fleet.run")
    serving = on_first_use("skylarkmq.broker.serving")

log = logging.getLogger("skylarkmq")

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
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
        click.option("--supervised", type=int, hidden=True, help="The supervisor's descriptor."),
    )
    for option in reversed(options):
        command = option(command)
    return command


brokers_option = click.option(
    "--brokers",
    type=int,
    metavar="N",
    help="Run N broker processes below a supervisor: at most one for each core.",
)


@click.command()
@server_options
@brokers_option
@click.option(
    "--dev", is_flag=True, help="For a try: data in ./var/store, log files of 64 MiB, not 1 GiB."
)
def serve(**options: Any) -> None:
    """Run a broker and a name server, in this process; with --brokers, in several."""
    _run_broker(with_namesrv=True, **options)


@click.command()
@server_options
@brokers_option
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
    supervised: int | None,
) -> None:
    """Run a name server alone (listenPort, 9876)."""
    loaded = _load(load_namesrv_config, config_path, settings)
    if print_config:
        _print_config(loaded)
        return
    is_member = supervised is not None
    set_up_logs(log_format, log_level, NAMESRV_NAME if is_member else "", shares_stream=is_member)
    if not is_member:
        _tell_oddities(loaded)
    link = _link_of(supervised)
    _run(serving.serve_names(loaded, log_format, link), link=link)


def _run_broker(
    *,
    with_namesrv: bool,
    config_path: Path | None,
    settings: tuple[str, ...],
    print_config: bool,
    log_format: LogFormat,
    log_level: str,
    supervised: int | None,
    brokers: int | None,
    dev: bool = False,
) -> None:
    if brokers is not None:
        settings = (*settings, f"brokers={brokers}")
    link = _link_of(supervised)
    loaded = _load(load_broker_config, config_path, settings, dev=dev, link=link)
    config = loaded.config
    if print_config:
        _print_config(loaded)
        return
    is_member, is_fleet = link is not None, link is None and config.brokers > 1
    name = "supervisor" if is_fleet else config.broker_name
    set_up_logs(log_format, log_level, name, shares_stream=is_member or is_fleet)
    if not is_member:
        _tell_oddities(loaded)
        _tell_unserved(config)
    if is_fleet:
        words = ["--dev"] if dev else []
        words += [] if config_path is None else ["-c", str(config_path)]
        words += [part for setting in settings for part in ("--set", setting)]
        command = "serve" if with_namesrv else "broker"
        line = fleet.CommandLine(command, words, log_format, log_level)
        _run(fleet.run_fleet(loaded, line, with_namesrv=with_namesrv), use_uvloop=False)
        return
    origin = _origin_of(loaded, config_path)
    main = serving.serve_broker(
        loaded, log_format, origin, link, with_namesrv=with_namesrv and not is_member
    )
    _run(main, link=link)


def _link_of(descriptor: int | None) -> SupervisorLink | None:
    """Return the link to the supervisor that has started this process; None: nobody did."""
    if descriptor is None:
        return None
    faulthandler.enable()  # who hangs gets SIGABRT, and writes where its threads are
    try:
        return SupervisorLink(descriptor)
    except OSError as error:
        _end(EXIT_USAGE, f"--supervised is what a supervisor says to its processes: {error}")


def _tell_unserved(config: BrokerConfig) -> None:
    for folder in unserved_folders(config):
        log.warning(
            "%s holds a broker's messages that nobody serves now: start with more brokers (it is "
            "%d now), or take the folder away",
            folder,
            config.brokers,
        )


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


def _load(
    load: Callable[[Sources], Loaded[Any]],
    path: Path | None,
    settings: tuple[str, ...],
    *,
    dev: bool = False,
    link: SupervisorLink | None = None,
) -> Loaded[Any]:
    home = Path(os.path.expanduser("~"))  # `~` itself where the system knows no home
    sources = Sources(path, os.environ, settings, home, socket.gethostname(), dev, TLS_FILE)
    try:
        return load(sources)
    except ConfigError as error:
        _end(EXIT_USAGE, str(error), link)
    except OSError as error:
        _end(EXIT_USAGE, f"cannot read {error.filename}: {error.strerror}", link)


def _print_config(loaded: Loaded[Any]) -> None:
    for key, value, origin in effective_values(loaded):
        click.echo(f"{key}={value}" + ("" if origin == "default" else f"  # {origin}"))


def _run(
    main: Coroutine[Any, Any, int],
    *,
    use_uvloop: bool = True,
    link: SupervisorLink | None = None,
) -> None:
    """Run to the end, on uvloop where it is installed, and end the process with the code."""
    factory = _loop_factory() if use_uvloop else None
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            code = runner.run(main)
    except ConfigError as error:
        _end(EXIT_USAGE, str(error), link)
    except StartFailedError as error:
        _end(error.code, str(error), link)
    except (StoreError, OSError) as error:
        _end(EXIT_FAILED, str(error), link)
    if code:
        sys.exit(code)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _end(code: int, why: str, link: SupervisorLink | None = None) -> NoReturn:
    """End with a reason, which a supervisor tells in place of this process."""
    if link is not None:
        link.failed(why)
    else:
        click.echo(f"skylarkmq: {why}", err=True)
    sys.exit(code)
