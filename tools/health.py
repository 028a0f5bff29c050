"""The command `skylarkmq health`: whether a broker is ready, for probes of containers.

It asks the page `/readyz` (`pages.py`). Exit codes: 0 ready, 1 not ready, 4 unreachable.
"""

from __future__ import annotations

import http.client
import sys
from typing import Final

import click

from skylarkmq.tools.local.addresses import host_and_port
from skylarkmq.tools.pages import UNREACHABLE, PageRequest, address_option, ask

NOT_READY: Final = 1
PATH: Final = "/readyz"


@click.command()
@address_option
def health(address: str) -> None:
    """Say whether a broker is ready for clients, and if not, why.

    Asks its metrics page, with TLS where the broker wants it. Exit codes: 0 ready, 1 not ready, 4
    unreachable.
    """
    host, port = host_and_port(address, "--address")
    try:
        status, text = ask(PageRequest(host, port, PATH))
    except OSError as error:
        click.echo(
            f"error: {address}: {error.strerror or error}. This asks the metrics page of one "
            "SkylarkMQ broker: is it running there (--address)? `skylarkmq cluster health` asks a "
            "whole cluster, RocketMQ's too",
            err=True,
        )
        sys.exit(UNREACHABLE)
    click.echo(text.rstrip())
    sys.exit(0 if status == http.client.OK else NOT_READY)
