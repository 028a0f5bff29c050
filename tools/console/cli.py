"""The command `skylarkmq console`.

Exit codes: 0 stopped as asked, 1 could not start, 2 wrong use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import click

from skylarkmq.client.config import Credentials
from skylarkmq.client.instance import Client
from skylarkmq.common.extras import how_to_install
from skylarkmq.tools.connection import Session, connected
from skylarkmq.tools.console.settings import DEFAULT_HOST, DEFAULT_PORT, Settings
from skylarkmq.tools.local.addresses import is_loopback

MISSING: Final = f"the console needs its libraries: {how_to_install('console')}"


class Place(click.ParamType[tuple[str, int]]):
    """HOST:PORT, or a port of this machine alone."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        host, _, port = str(value).rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            self.fail(f"{value!r} is not HOST:PORT", param, ctx)
        return host.strip("[]") or DEFAULT_HOST, int(port)


@click.command()
@click.option(
    "--listen", type=Place(), metavar="[HOST:]PORT", default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    show_default=True, help="Where browsers find it.",
)  # fmt: skip
@click.option("--write", is_flag=True, help="Allow changes; without it the console only reads.")
@click.option(
    "--login", is_flag=True,
    help="Let nobody in without an account of the brokers' access control.",
)  # fmt: skip
@click.option(
    "--host-name", "names", multiple=True, metavar="NAME",
    help="A host name by which browsers call it, as behind a proxy; repeatable.",
)  # fmt: skip
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="For the one who starts it.")
@connected
def console(
    listen: tuple[str, int],
    write: bool,
    login: bool,
    names: tuple[str, ...],
    until_stdin_ends: bool,
    session: Session,
) -> None:
    """Show a cluster as web pages: brokers, topics, groups with lag, messages, dead letters.

    It works on SkylarkMQ and on Apache RocketMQ. It only reads, unless --write is given, and it
    listens on this machine alone, unless --listen says otherwise.
    """
    host, port = listen
    if login and session.credentials is not None:
        raise click.UsageError(
            "--login has each user log in; it does not go with an account of the console's own"
        )
    if write and not login and not is_loopback(host):
        raise click.UsageError(
            f"with --write on {host}, anybody who reaches it may change the cluster: add --login"
        )

    def connect(credentials: Credentials | None) -> Client:
        return replace(session, credentials=credentials).client()

    settings = Settings(
        namesrv=session.namesrv,
        connect=connect,
        credentials=session.credentials,
        timeout=session.timeout,
        is_writing=write,
        needs_login=login,
        host=host,
        names=frozenset(name.lower() for name in names),
    )
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    sys.exit(asyncio.run(_serve(settings, port, until_stdin_ends)))


async def _serve(settings: Settings, port: int, until_stdin_ends: bool) -> int:
    try:
        from skylarkmq.tools.console.app import make_app
        from skylarkmq.tools.console.server import ConsoleServer, listen
    except ImportError as error:
        click.echo(f"error: {MISSING} ({error})", err=True)
        return 1
    try:
        listener = listen(settings.host, port)
    except OSError as error:
        place = f"{settings.host}:{port}"
        click.echo(f"error: cannot listen on {place}: {error.strerror}; try --listen", err=True)
        return 1
    audit_log = logging.getLogger("skylarkmq.audit")  # its lines are JSON, nothing before it
    audit_log.addHandler(logging.StreamHandler())
    audit_log.setLevel(logging.INFO)
    audit_log.propagate = False
    server = ConsoleServer(make_app(settings), listener)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # not on Windows
            loop.add_signal_handler(number, stop)
    if until_stdin_ends:  # whoever started it tells where it is
        _on_end_of_stdin(loop, stop)
    else:
        click.echo(_banner(settings, server.address), err=True)
    await server.run_until_told()
    return 0


def _banner(settings: Settings, address: str) -> str:
    does = "changes what you tell it to" if settings.is_writing else "only reads (--write)"
    text = f"console of {settings.namesrv} at {address}; it {does}; Ctrl-C ends it"
    if not is_loopback(settings.host) and not settings.needs_login:
        text += "\nwarning: whoever reaches this address sees all messages; see --login"
    return text


def _on_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call `stop` on the loop once whoever holds the other end of standard input is gone."""

    def wait() -> None:
        while sys.stdin.buffer.read(1024):
            pass
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, name="skylarkmq-console-stdin", daemon=True).start()
