"""Asks a page of a broker's metrics port, in plain text, and with TLS where that gets no answer.

The certificate is not checked then: it is for this machine's own broker, whose certificate has the
name that clients know.
"""

from __future__ import annotations

import http.client
import ssl
from typing import Final, NamedTuple

import click

UNREACHABLE: Final = 4

address_option = click.option(
    "--address", metavar="HOST:PORT", default="127.0.0.1:5557", show_default=True,
    help="Where the metrics page listens.",
)  # fmt: skip


class PageRequest(NamedTuple):
    """What is asked for."""

    host: str
    port: int
    path: str
    method: str = "GET"
    limit_s: float = 3.0


def ask(asked: PageRequest) -> tuple[int, str]:
    """Return the status and the text of a page.

    Raises:
        OSError: nobody answers, or who answers is no broker.
    """
    host, port, limit_s = asked.host, asked.port, asked.limit_s
    try:
        return _ask(http.client.HTTPConnection(host, port, timeout=limit_s), asked)
    except (http.client.RemoteDisconnected, ConnectionResetError):  # it wants TLS
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        secure = http.client.HTTPSConnection(host, port, timeout=limit_s, context=context)
        return _ask(secure, asked)


def _ask(connection: http.client.HTTPConnection, asked: PageRequest) -> tuple[int, str]:
    try:
        connection.request(asked.method, asked.path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        if isinstance(error, OSError):
            raise
        raise OSError(f"what answers there is no broker: {error!r}") from error
    finally:
        connection.close()
