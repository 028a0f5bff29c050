"""Where servers of HTTP are, as a list of URLs names them."""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

PORT_OF: Final = {"http": 80, "https": 443}


class Endpoint(NamedTuple):
    """Where a server listens, and whether it speaks TLS there."""

    host: str
    port: int
    is_tls: bool

    @property
    def address(self) -> str:
        """Host and port, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.is_tls else 'http'}://{self.address}"


def read_endpoint(text: str) -> Endpoint:
    """Return the endpoint that a URL such as `https://etcd-1.example:2379` names.

    Raises:
        ValueError: it is none, or says more than an endpoint is, such as a path or a password.
    """
    cure = "write it as http://host:port or https://host:port"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{text[:80]!a} is no URL ({error}); {cure}") from None
    if "@" in url.netloc:
        # Not shown: what stands there may be a password.
        raise ValueError(f"an endpoint has no user and no password in its URL; {cure}")
    host = url.hostname or ""
    is_host = host != "" and host.isascii() and host.isprintable() and " " not in host
    has_more = url.path.strip("/") or url.query or url.fragment
    if url.scheme not in PORT_OF or not is_host or port == 0 or has_more:
        raise ValueError(f"{text[:80]!a} is no endpoint; {cure}")
    return Endpoint(host, port or PORT_OF[url.scheme], url.scheme == "https")


def read_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints of a list such as `http://a:2379,https://b:2379`.

    Raises:
        ValueError: none, one twice, or one that is no URL; says what to write.
    """
    endpoints = tuple(read_endpoint(part.strip()) for part in text.split(",") if part.strip())
    if not endpoints:
        raise ValueError("no endpoint: write http://host:port, several with commas")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError("an endpoint stands there twice: write each member once")
    return endpoints
