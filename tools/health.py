"""The command `skylarkmq health`: whether a broker is ready, for probes of containers.

It asks the page `/readyz` (`pages.py`). A container may run another server, a name server or the
console, which has no such page: that one is healthy while it listens (`--or`).

Exit codes: 0 ready, 1 not ready, 4 unreachable.
"""

from __future__ import annotations

import http.client
import socket
import sys
from typing import Final

import click

from skylarkmq.tools.local.addresses import host_and_port
from skylarkmq.tools.pages import UNREACHABLE, PageRequest, address_option, ask

NOT_READY: Final = 1
PATH: Final = "/readyz"
CONNECT_LIMIT_S: Final = 1.0


@click.command()
@address_option
@click.option(
    "--or", "others", multiple=True, metavar="HOST:PORT",
    help="A name server or a console: ready when it listens, and nobody has the metrics page; "
    "repeatable.",
)  # fmt: skip
def health(address: str, others: tuple[str, ...]) -> None:
    """Say whether one broker is ready for clients, and if not, why: for probes.

    Asks its metrics page, with TLS where the broker wants it. `cluster health` asks all servers of
    a cluster, `doctor` looks for causes. Exit codes: 0 ready, 1 not ready, 4 unreachable.
    """
    places = {other: host_and_port(other, "--or") for other in others}
    host, port = host_and_port(address, "--address")
    try:
        status, text = ask(PageRequest(host, port, PATH))
    except OSError as error:
        is_absent = isinstance(error, ConnectionRefusedError)  # and not a broker that hangs
        found = next((one for one in places if is_absent and _listens(places[one])), None)
        if found is not None:
            click.echo(f"ready: {found} listens")
            return
        click.echo(
            f"error: {address}: {error.strerror or error}. This asks the metrics page of one "
            "SkylarkMQ broker: is it running there (--address)? `skylarkmq cluster health` asks a "
            "whole cluster, RocketMQ's too",
            err=True,
        )
        sys.exit(UNREACHABLE)
    click.echo(text.rstrip())
    sys.exit(0 if status == http.client.OK else NOT_READY)


def _listens(place: tuple[str, int]) -> bool:
    try:
        socket.create_connection(place, CONNECT_LIMIT_S).close()
    except OSError:
        return False
    return True
