"""The table of topics and the table of groups: rows by name, one version, one file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from skylarkmq.broker.base.token_bucket import TokenBucket
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.tables.json_table import TableBody, first_version, next_version, table_text
from skylarkmq.broker.tables.persist import TableFile
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.host_address import network_at
from skylarkmq.store.folder import StorePaths

BURST_S: Final = 10
"""So many seconds' worth of new names may be made at once."""
ADDRESSES_MAX: Final = 4096
"""Addresses that are remembered; one more, and all are forgotten."""

Row = TypeVar("Row", bound=msgspec.Struct)


class ConfigTable(TableFile, Generic[Row]):
    """Rows that are durable before their change is answered. Loop thread.

    Attributes:
        table: the rows by name, for lookups on the hot path; changed by the methods alone.
        data_version: changes with every change of the table.
        body: the whole table as an answer.
        row_changed: called with the name of each row that is put or removed.
    """

    def __init__(
        self,
        file: str,
        name: str,
        config: BrokerConfig,
        files: Files,
        writer: TableWriter,
        clock: Clock,
    ) -> None:
        """Make an empty table.

        Args:
            file: its name.
            name: of the table in the file and in the body.
        """
        path = StorePaths(config.store.store_path_root_dir).config / file
        super().__init__(writer, path, self._taken)
        self.table: dict[str, Row] = {}
        self.data_version: DataVersion = first_version(clock)
        self.body = TableBody(
            name,
            lambda: self.data_version,
            lambda: self.table.copy().items(),
            lambda: self.data_version,
        )
        self._name = name
        self._config = config
        self._files = files
        self._clock = clock
        per_s = 0 if config.acl_enable else config.new_names_per_second
        self._new_names = NewNames(clock, per_s)
        self.row_changed: Callable[[str], None] | None = None

    def take_over(self, rows: dict[str, Row], version: DataVersion) -> None:
        """Have another broker's table in place of this one, under its version."""
        self.table = rows
        self.data_version = version
        self.changed()

    def _add_row(self, name: str, row: Row) -> None:
        """Put a row into the table, in place of the one with its name."""
        self.table[name] = row
        if self.row_changed is not None:
            self.row_changed(name)
        self._next_version()

    def _remove_row(self, name: str) -> bool:
        """Remove a row; False when there is none."""
        if self.table.pop(name, None) is None:
            return False
        if self.row_changed is not None:
            self.row_changed(name)
        self._next_version()
        return True

    def _next_version(self) -> None:
        self.data_version = next_version(self.data_version, self._clock)
        self.changed()

    def _taken(self) -> Text:
        return partial(table_text, self._name, self.table.copy(), self.data_version)


class NewNames:
    """How many topics and groups one address may make by merely using them. Loop thread.

    A client that may send, pull or consume makes what it names, each with a line in a table, files
    and series of metrics. An application does so a few times; a loop over random names would do
    nothing else. Administrators' calls are not counted, nor anything where access control is on:
    accounts are known. Unlike RocketMQ, which makes any number.
    """

    def __init__(self, clock: Clock, per_s: int) -> None:
        """Allow `per_s` new names a second; 0 allows any number."""
        self._clock = clock
        self._per_s = per_s
        self._buckets: dict[bytes, TokenBucket] = {}

    def check(self, remote_address: str, name: str) -> None:
        """Count a new name.

        Raises:
            RemoteProtocolError: SYSTEM_ERROR; the address has made too many.
        """
        if not self._per_s:
            return
        network = network_at(remote_address)
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= ADDRESSES_MAX:
                self._buckets.clear()
            bucket = TokenBucket(self._clock, self._per_s * BURST_S, self._per_s)
            self._buckets[network] = bucket
        if not bucket.take():
            raise RemoteProtocolError(
                ResponseCode.SYSTEM_ERROR,
                f"{name} is not made: {remote_address.rpartition(':')[0]} makes more than "
                f"newNamesPerSecond={self._per_s} topics or groups by using them; try later, make "
                "them beforehand as an administrator does, or set newNamesPerSecond higher",
            )
