"""The command `skylarkmq record`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import click

from skylarkmq.client.clock import SystemClock
from skylarkmq.tools.connection import Session, online
from skylarkmq.tools.local.addresses import host_and_port, is_loopback
from skylarkmq.tools.local.private_file import private_file
from skylarkmq.tools.moments import Span
from skylarkmq.tools.running import EXIT_CODES, run
from skylarkmq.tools.traffic.proxy import Proxy
from skylarkmq.tools.traffic.recording import Recorder


@click.command(epilog=EXIT_CODES)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--to", metavar="HOST:PORT", help="The server: a broker, or a name server; default: "
              "the first name server.")  # fmt: skip
@click.option("--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT",
              help="Where clients connect to, on loopback; port 0: a free one.")  # fmt: skip
@click.option("--brokers", is_flag=True, help="In front of a name server: lead clients to brokers "
              "through proxies, too, and record them.")  # fmt: skip
@click.option("--bodies", is_flag=True, help="Record bodies, too; those of settings and accounts "
              "never.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N commands.")
@click.option("--for", "span", type=Span(), metavar="SPAN", help="End after that: 30s, 5m.")
@online
def record(
    session: Session,
    file: Path,
    to: str | None,
    listen: str,
    brokers: bool,
    bodies: bool,
    count: int | None,
    span: timedelta | None,
) -> None:
    """Record what passes between clients and a server into FILE, until Ctrl-C.

    Clients connect to the proxy in the server's place. Access keys, signatures, tokens and secrets
    are left out, and, without --bodies, bodies. Keys, tags and properties of messages are
    recorded. With --tls the server is spoken to over TLS; clients speak plain text to the proxy.
    """
    target = to or session.namesrv.split(";")[0].strip()
    host, port = host_and_port(listen, "--listen")
    host_and_port(target, "--to")
    if not is_loopback(host):
        raise click.BadParameter(
            f"{host} is not on loopback: whoever reaches the proxy reaches the server",
            param_hint="--listen",
        )

    async def work() -> None:
        clock = SystemClock(asyncio.get_running_loop())
        try:
            opened = private_file(file)
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror}") from error
        with opened as stream:
            recorder = Recorder(stream, bodies)
            recorder.head(target)
            proxy = Proxy(
                recorder, clock, host, tls=session.tls, brokers=brokers, limit=count
            )  # fmt: skip
            try:
                address = await proxy.listen(target, port)
                click.echo(f"clients connect to {address} in the place of {target}", err=True)
                ending = asyncio.timeout(None if span is None else span.total_seconds())
                try:
                    async with ending:
                        await proxy.full.wait()
                except TimeoutError:
                    if not ending.expired():
                        raise
            finally:
                await proxy.close()
                counts = {**recorder.counts, "connections": proxy.connections}
                session.output.one({"file": str(file), **counts, "codes": recorder.codes})
        if proxy.failure is not None:
            raise click.ClickException(f"{file}: {proxy.failure.strerror}")

    run(work, open_ended=count is None and span is None)
