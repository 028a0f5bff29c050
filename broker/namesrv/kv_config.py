"""Texts that a name server keeps for others: namespace -> key -> value, and `kvConfig.json`.

    {"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}

Tools keep the queues of ordered topics there; with `orderMessageEnable` a topic's route has them.
Changes are on the disk before they are answered. The file is read by RocketMQ as well.

Source: apache/rocketmq@rocketmq-all-4.9.8 namesrv/.../kvconfig/KVConfigManager.java
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from skylarkmq.broker.tables.json_table import load_table, table_text
from skylarkmq.broker.tables.persist import TableFile
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown

log = logging.getLogger(__name__)

NAMESPACE_ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX: Final = 100_000
NAME_SIZE_MAX: Final = 255
"""Characters of a namespace, and of a key."""
VALUE_SIZE_MAX: Final = 64 << 10
"""Characters of a value: an ordered topic on a thousand brokers has a third."""
TOTAL_SIZE_MAX: Final = 8 << 20
"""Characters of all names and values."""


class KVConfigSerializeWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What the file holds."""

    config_table: dict[str, dict[str, str]] = {}


class KVConfig:
    """The table. Loop thread.

    Attributes:
        file: where it is kept; None: in memory alone.
    """

    def __init__(self) -> None:
        self._table: dict[str, dict[str, str]] = {}
        self._size = 0  # characters of all names and values
        self._count = 0
        self.file: TableFile | None = None

    def open(self, files: Files, path: Path, writer: TableWriter) -> None:
        """Read the file, and write every change to it from now on. Blocks; before serving.

        Raises:
            CorruptFileError: neither the file nor its `.bak` can be read.
            OSError: the disk failed.
        """
        self.file = TableFile(writer, path, self._take)
        if not files.list(path.parent):
            return
        loaded = load_table(files, path, KVConfigSerializeWrapper)
        for namespace, rows in ({} if loaded is None else loaded.config_table).items():
            if namespace == NAMESPACE_ORDER_TOPIC_CONFIG:
                self._table[namespace] = {}
            for key, value in rows.items():
                self._put(namespace, key, value)

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value of a key."""
        return self._table.get(namespace, {}).get(key)

    def of_namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys of a namespace with their values, None when it has none.

        The order table is there once it has had a key.
        """
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set the value of a key.

        Raises:
            RemoteProtocolError: a text is too long, a name is empty, or there is no room.
        """
        for name in (namespace, key):
            if not 0 < len(name) <= NAME_SIZE_MAX or not name.isprintable():
                raise _refused(f"{shown(name)} is no name: 1 to {NAME_SIZE_MAX} characters")
        if len(value) > VALUE_SIZE_MAX:
            raise _refused(f"the value has {len(value)} characters, {VALUE_SIZE_MAX} are allowed")
        old = self.get(namespace, key)
        growth = len(value) - len(old) if old is not None else _size(namespace, key, value)
        if (old is None and self._count >= ENTRIES_MAX) or self._size + growth > TOTAL_SIZE_MAX:
            raise _refused(f"no room for another value: there are {self._count}")
        self._put(namespace, key, value)
        self._changed()

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; nothing happens when it is not there."""
        rows = self._table.get(namespace, {})
        value = rows.pop(key, None)
        if value is None:
            return
        # Brokers are told an order table that is empty: they learn so which topic left it last.
        if not rows and namespace != NAMESPACE_ORDER_TOPIC_CONFIG:
            del self._table[namespace]
        self._count -= 1
        self._size -= _size(namespace, key, value)
        self._changed()

    def _put(self, namespace: str, key: str, value: str) -> None:
        rows = self._table.setdefault(namespace, {})
        old = rows.get(key)
        if old is None:
            self._count += 1
            self._size += _size(namespace, key, value)
        else:
            self._size += len(value) - len(old)
        rows[key] = value

    def _changed(self) -> None:
        if self.file is not None:
            self.file.changed()

    def _take(self) -> Text:
        rows = {namespace: dict(values) for namespace, values in self._table.items()}
        return partial(table_text, "configTable", rows, None)


def _size(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
