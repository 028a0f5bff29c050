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
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypedDict, Unpack

import click

from skylarkmq.broker.base.logs import LogFormatOption, chosen_format, set_up_logs
from skylarkmq.broker.base.process import loop_factory
from skylarkmq.broker.config.config_file import (
    DEFAULT_ORIGIN,
    NAMESRV_ADDR_VARIABLE,
    PROFILE_ORIGIN,
    PROFILES,
    TLS_FILE,
    ConfigOrigin,
    Loaded,
    Profile,
    Sources,
    effective_values,
    load_broker_config,
    load_namesrv_config,
)
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.fleet.console import DEFAULT_PLACE
from skylarkmq.broker.fleet.link import SupervisorLink
from skylarkmq.broker.fleet.plan import NAMESRV_NAME, unserved_folders
from skylarkmq.broker.fleet.supervisor import StartFailedError
from skylarkmq.broker.net.addresses import is_own
from skylarkmq.broker.net.exposure import why_open
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.errors import StoreError, reason
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.flags import MASTER_ID

if TYPE_CHECKING:
    import skylarkmq.broker.fleet.run as fleet
    import skylarkmq.broker.serving as serving
    import skylarkmq.broker.start_check as start_check
else:  # one of the two: a supervisor loads no broker
    fleet = on_first_use("skylarkmq.broker.fleet.run")
    serving = on_first_use("skylarkmq.broker.serving")
    start_check = on_first_use("skylarkmq.broker.start_check")

log = logging.getLogger("skylarkmq")

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
CONSOLE_ALONE: Final = "run `skylarkmq console --tls-ca ...` beside them"
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
        click.option(
            "--print-config", is_flag=True, help="Print every key, as a file for -c, and end."
        ),
        click.option("--origins", is_flag=True, help="With --print-config: where values are from."),
        click.option(
            "--check",
            is_flag=True,
            help="Say what a start would meet on this machine, change nothing, and end: 0 all is "
            "well, 1 it would fail.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(["auto", "text", "json"]),
            default="auto",
            show_default=True,
            help="auto: text on a terminal, JSON elsewhere.",
        ),
        click.option(
            "--log-level",
            metavar="LEVELS",
            help="As --set logLevel=LEVELS: DEBUG, INFO, WARNING, ERROR, or for parts "
            "INFO,skylarkmq.store=DEBUG.",
        ),
        click.option("--supervised", type=int, hidden=True, help="The supervisor's descriptor."),
    )
    for option in reversed(options):
        command = option(command)
    return command


profile_option = click.option(
    "--profile",
    type=click.Choice([*PROFILES]),
    default="prod",
    show_default=True,
    help="dev: data in ./var/store, log files of 64 MiB, not 1 GiB; test: data in "
    "./var/test-store, log files of 16 MiB; prod: RocketMQ's own sizes.",
)
brokers_option = click.option(
    "--brokers",
    type=int,
    metavar="N",
    help="Run N broker processes below a supervisor: at most one for each core.",
)


@click.command()
@server_options
@brokers_option
@profile_option
@click.option(
    "--console",
    "console_place",
    is_flag=False,
    flag_value=DEFAULT_PLACE,
    metavar="[HOST:]PORT",
    help=f"Run `skylarkmq console` beside the servers, without --write; alone it is at "
    f"{DEFAULT_PLACE}.",
)
@click.option("--dev", "profile", flag_value="dev", help="For a try: as --profile dev.")
def serve(**options: Any) -> None:
    """Run a broker and a name server, in this process; with --brokers, in several."""
    _run_broker(with_namesrv=True, **options)


@click.command()
@server_options
@brokers_option
@profile_option
def broker(**options: Any) -> None:
    """Run a broker alone; it registers with every namesrvAddr."""
    _run_broker(with_namesrv=False, **options)


@click.command()
@server_options
def namesrv(
    config_path: Path | None,
    settings: tuple[str, ...],
    supervised: int | None,
    **wanted: Unpack[Wanted],
) -> None:
    """Run a name server alone (listenPort, 9876)."""
    loaded = _load(load_namesrv_config, config_path, _with_levels(settings, wanted))
    if _only_told(loaded, wanted):
        return
    is_member = supervised is not None
    log_format = chosen_format(wanted["log_format"])
    levels = loaded.config.log_level
    set_up_logs(log_format, levels, NAMESRV_NAME if is_member else "", shares_stream=is_member)
    if not is_member:
        _tell_oddities(loaded)
    link = _link_of(supervised)
    _run(serving.serve_names(loaded, log_format, link), link=link)


class Wanted(TypedDict):
    """The options that all servers share and that are no configuration."""

    print_config: bool
    origins: bool
    check: bool
    log_format: LogFormatOption
    log_level: str | None


def _run_broker(
    *,
    with_namesrv: bool,
    config_path: Path | None,
    settings: tuple[str, ...],
    supervised: int | None,
    brokers: int | None,
    profile: Profile,
    console_place: str | None = None,
    **wanted: Unpack[Wanted],
) -> None:
    settings = _with_levels(settings, wanted)
    if brokers is not None:
        settings = (*settings, f"brokers={brokers}")
    link = _link_of(supervised)
    # A try must not join the cluster that the shell's clients work with.
    alone = {NAMESRV_ADDR_VARIABLE} if with_namesrv and profile == "dev" else ()
    environment = {name: text for name, text in os.environ.items() if name not in alone}
    loaded = _load(load_broker_config, config_path, settings, environment, profile, link)
    config = loaded.config
    if _only_told(loaded, wanted, with_namesrv=with_namesrv):
        return
    if console_place is not None and config.tls.tls_server_mode == "enforcing":
        _end(EXIT_USAGE, "--console speaks no TLS to the servers, which want it: " + CONSOLE_ALONE)
    is_member, is_fleet = link is not None, link is None and config.brokers > 1
    name = "supervisor" if is_fleet else config.broker_name
    log_format = chosen_format(wanted["log_format"])
    number = MASTER_ID if is_fleet else config.broker_id
    set_up_logs(log_format, config.log_level, name, number, shares_stream=is_member or is_fleet)
    if not is_member:
        _tell_oddities(loaded)
        _tell_unserved(config)
    if is_fleet:
        words = ["--profile", profile]
        words += [] if config_path is None else ["-c", str(config_path)]
        words += [part for setting in settings for part in ("--set", setting)]
        command = "serve" if with_namesrv else "broker"
        line = fleet.CommandLine(command, words, log_format, config.log_level)
        main = fleet.run_fleet(loaded, line, with_namesrv=with_namesrv, console=console_place)
        _run(main, use_uvloop=False)
        return
    origin = _origin_of(loaded, config_path)
    main = serving.serve_broker(
        loaded,
        log_format,
        origin,
        link,
        with_namesrv=with_namesrv and not is_member,
        console=console_place,
    )
    _run(main, link=link)


def _with_levels(settings: tuple[str, ...], wanted: Wanted) -> tuple[str, ...]:
    level = wanted["log_level"]
    return settings if level is None else (*settings, f"logLevel={level}")


def _only_told(loaded: Loaded[Any], wanted: Wanted, *, with_namesrv: bool = False) -> bool:
    """Do what --print-config and --check ask for; return whether one of them was given."""
    if wanted["print_config"]:
        for key, value, origin in effective_values(loaded):
            click.echo(f"{key}={value}" + (f"  # {origin}" if wanted["origins"] else ""))
    elif wanted["origins"]:
        raise click.UsageError("--origins goes with --print-config")
    if wanted["check"]:
        found = asyncio.run(start_check.check_start(loaded, with_namesrv=with_namesrv))
        for each in found:
            click.echo(f"{each.level:<8} {each.subject}: {each.text}")
        if any(each.level == "problem" for each in found):
            sys.exit(EXIT_FAILED)
    return wanted["print_config"] or wanted["check"]


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
    weaker = (DEFAULT_ORIGIN, PROFILE_ORIGIN, f"{path} line ")
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
    environment: Mapping[str, str] = os.environ,
    profile: Profile = "prod",
    link: SupervisorLink | None = None,
) -> Loaded[Any]:
    home = Path(os.path.expanduser("~"))  # `~` itself where the system knows no home
    name = socket.gethostname()
    sources = Sources(path, environment, settings, home, name, profile, TLS_FILE, is_own)
    try:
        return load(sources)
    except ConfigError as error:
        _end(EXIT_USAGE, str(error), link)
    except OSError as error:
        _end(EXIT_USAGE, f"cannot read {error.filename}: {error.strerror}", link)


def _run(
    main: Coroutine[Any, Any, int],
    *,
    use_uvloop: bool = True,
    link: SupervisorLink | None = None,
) -> None:
    """Run to the end, on uvloop where it is installed, and end the process with the code."""
    factory = loop_factory() if use_uvloop else None
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            code = runner.run(main)
    except ConfigError as error:
        _end(EXIT_USAGE, str(error), link)
    except StartFailedError as error:
        _end(error.code, str(error), link)
    except (StoreError, OSError) as error:
        _end(EXIT_FAILED, reason(error), link)
    if code:
        sys.exit(code)


def _end(code: int, why: str, link: SupervisorLink | None = None) -> NoReturn:
    """End with a reason, which a supervisor tells in place of this process."""
    if link is not None:
        link.failed(why)
    else:
        click.echo(f"skylarkmq: {why}", err=True)
    sys.exit(code)
