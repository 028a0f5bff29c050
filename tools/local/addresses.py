"""Addresses on the command line: `HOST:PORT`, and which of them are this machine's own."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

import click

PORT_MAX: Final = 65_535


def host_and_port(text: str, option: str) -> tuple[str, int]:
    """Return host and port of an option's value.

    Raises:
        click.BadParameter: it is something else.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise click.BadParameter(f"{text!r} is not HOST:PORT", param_hint=option)
    return host.strip("[]"), int(port)


def is_address(text: str) -> bool:
    """Return whether a text is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its own network."""
    return host == "localhost" or (is_address(host) and ip_address(host).is_loopback)
