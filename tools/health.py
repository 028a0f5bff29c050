"""The command `skylarkmq health`: whether a broker is ready, for probes of containers.

It asks the page `/readyz`, in plain text, and with TLS where plain text gets no answer. The
certificate is not checked: the answer is a yes or no about this address, and nothing is told there.
Exit codes: 0 ready, 1 not ready, 4 unreachable.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from typing import Final

import click

NOT_READY: Final = 1
UNREACHABLE: Final = 4
LIMIT_S: Final = 3.0
PATH: Final = "/readyz"


@click.command()
@click.option(
    "--address", metavar="HOST:PORT", default="127.0.0.1:5557", show_default=True,
    help="Where the metrics page listens.",
)  # fmt: skip
def health(address: str) -> None:
    """Say whether a broker is ready for clients, and if not, why.

    Asks its metrics page, with TLS where the broker wants it. Exit codes: 0 ready, 1 not ready, 4
    unreachable.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--address")
    try:
        status, text = _ask(host.strip("[]"), int(port))
    except OSError as error:
        click.echo(f"error: {address}: {error}", err=True)
        sys.exit(UNREACHABLE)
    click.echo(text.rstrip())
    sys.exit(0 if status == http.client.OK else NOT_READY)


def _ask(host: str, port: int) -> tuple[int, str]:
    try:
        return _get(http.client.HTTPConnection(host, port, timeout=LIMIT_S))
    except (http.client.RemoteDisconnected, ConnectionResetError):  # it wants TLS
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return _get(http.client.HTTPSConnection(host, port, timeout=LIMIT_S, context=context))


def _get(connection: http.client.HTTPConnection) -> tuple[int, str]:
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        if isinstance(error, OSError):
            raise
        raise OSError(f"what answers there is no broker: {error!r}") from error
    finally:
        connection.close()
