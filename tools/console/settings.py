"""What a console is started with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.config import Credentials
from skylarkmq.client.instance import Client
from skylarkmq.tools.local.addresses import is_address

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
SAMPLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a console behaves, whoever looks at it."""

    namesrv: str
    """Name servers, for the text of pages."""
    connect: Callable[[Credentials | None], Client]
    """Makes a client of the cluster, not started, that signs with these keys."""
    credentials: Credentials | None = None
    """Of the console itself; everybody who reaches it acts with them."""
    timeout: float = 5.0
    """Seconds for each request to the cluster."""
    is_writing: bool = False
    needs_login: bool = False
    host: str = DEFAULT_HOST
    names: frozenset[str] = field(default=frozenset())
    """Host names by which browsers may call it, beside addresses and `localhost`."""
    sample_s: float = SAMPLE_S
    """Seconds between two looks at the groups' lag."""

    def knows_host(self, host: str) -> bool:
        """Return whether a browser may have meant this console by the header `Host`.

        A page of somebody else can let a name of its own point to this console's address, and
        would then be of the same origin. It cannot do that with an address.
        """
        name = host.strip().lower()
        name = (
            name[1:].partition("]")[0] if name.startswith("[") else name.rpartition(":")[0] or name
        )
        return name in self.names or name in ("localhost", self.host.lower()) or is_address(name)
