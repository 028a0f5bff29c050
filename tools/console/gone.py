"""Brokers that were there and are gone: name servers forget one whose connection has ended.

So nobody else says it, and what such a broker has stored is missing on each page. It is gone until
it is registered again, for a day, or until somebody has the console forget it: a broker that was
taken away on purpose looks the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from skylarkmq.client.admin import BrokerSummary
from skylarkmq.protocol.flags import MASTER_ID
from skylarkmq.tools.doctor.findings import Finding

TOLD_FOR: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Gone:
    """A broker, or one process of it, since a look of the console that missed it."""

    broker: str
    since: datetime
    process: str = ""
    """`master` or `slave 1`, of a name of which others are there; empty: none is."""

    @property
    def subject(self) -> str:
        """Who it is."""
        return f"{self.broker} ({self.process})" if self.process else self.broker

    @property
    def is_missing(self) -> bool:
        """Whether pages lack what it has: they ask masters alone."""
        return self.process in ("", "master")

    def __str__(self) -> str:
        return f"{self.subject}, which has been gone since {self.since:%H:%M}"

    def finding(self) -> Finding:
        """Return it for the overview."""
        cause = f"has been gone since {self.since:%H:%M}: the name servers have forgotten it"
        cure = "Start it again. If it is gone on purpose: this is said for a day"
        if not self.is_missing:
            return Finding("broker_gone", "warning", self.subject, cause, cure)
        cause += ", and what it has stored is not shown"
        return Finding("broker_gone", "critical", self.subject, cause, cure)


class Registered:
    """The processes that are registered, and those that were. Loop thread."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, int], str] = {}
        self._gone: dict[tuple[str, int], datetime] = {}
        self._names: frozenset[str] = frozenset()

    def note(self, brokers: Iterable[BrokerSummary], now: datetime) -> None:
        """Take what the name servers say now."""
        here, before = {each.name: each.addresses for each in brokers}, dict(self._addresses)
        self._names = frozenset(here)
        for name, addresses in here.items():
            for broker_id, address in addresses.items():
                self._addresses[name, broker_id] = address
                self._gone.pop((name, broker_id), None)
        for key, address in before.items():
            ids = {address: broker_id for broker_id, address in here.get(key[0], {}).items()}
            if key[1] in ids.values():
                continue
            since = self._gone.setdefault(key, now)
            if address in ids:  # it is there under another id; who had that may be gone
                address = before.get((key[0], ids[address]), address)
                self._addresses[key] = address
            if address in ids or now - since >= TOLD_FOR:
                del self._addresses[key], self._gone[key]

    def gone(self) -> list[Gone]:
        """Return who is gone: of a name of which nobody is left, only the name."""
        found: dict[str, Gone] = {}
        for (name, broker_id), since in sorted(self._gone.items()):
            if name in self._names:
                process = "master" if broker_id == MASTER_ID else f"slave {broker_id}"
                found[f"{name} {process}"] = Gone(name, since, process)
            else:
                known = found.get(name)
                found[name] = Gone(name, max(since, known.since) if known else since)
        return [*found.values()]

    def forget(self, broker: str) -> bool:
        """Miss no process of a name any more; return whether one was missed."""
        keys = [key for key in self._gone if key[0] == broker]
        for key in keys:
            del self._addresses[key], self._gone[key]
        return bool(keys)
