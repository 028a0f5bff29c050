"""A broker with its name server, whoever wrote it, as the tests see it."""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Protocol

from tests.interop.children import Children

# Retries go up from level 3: a second each, so that they are quick; levels 1 and 2 differ.
DELAY_LEVELS = " ".join(["1s", "2s", *["1s"] * 16])

# Of their files: small ones, and the same for all, so that a store can change hands.
FILE_SIZES = {
    "mappedFileSizeCommitLog": 16 << 20,
    "mappedFileSizeConsumeQueue": 2000 * 20,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20000,
}

# What a default broker leaves off, and transactions that are checked while a test waits.
FEATURES: dict[str, str | int] = {
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 5,
}


class Cluster(Protocol):
    """What clients and brokers can join."""

    @property
    def namesrv(self) -> str:
        """Its name servers, `host:port;host:port`."""
        ...


class Broker(abc.ABC):
    """A broker named broker-a and its name server, on loopback and on a store of their own.

    Or a broker-b that joins other name servers. `keys` are configuration beside FEATURES, or
    instead of some of them.
    """

    kind: str
    namesrv_port: int
    port: int

    def __init__(
        self, children: Children, folder: Path, joins: Cluster | None = None, **keys: object
    ) -> None:
        self.keys = {"messageDelayLevel": DELAY_LEVELS, **FILE_SIZES, **FEATURES, **keys}
        self.children = children
        self.folder = folder
        self.joins = joins
        self.name = str(keys.get("brokerName", "broker-b" if joins else "broker-a"))

    @property
    def namesrv(self) -> str:
        """Where clients ask for routes."""
        if self.joins:
            return self.joins.namesrv
        return f"127.0.0.1:{self.namesrv_port}"

    @abc.abstractmethod
    def start(self) -> None:
        """Start on the store as it is and return when clients are served."""

    @abc.abstractmethod
    def stop(self) -> None:
        """A clean stop. A later start takes the same ports."""

    @abc.abstractmethod
    def kill(self) -> None:
        """An end without a warning. A later start takes the same ports."""

    def end(self) -> None:
        """Leave no process behind; nobody will look at the store any more."""
        self.children.stop_all()
