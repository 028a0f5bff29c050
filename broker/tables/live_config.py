"""Changing the configuration of a running broker (25), and telling it (26).

Only the keys that are marked `Live`: each is read anew whenever it counts, so a change holds from
the next request or round on. Any other key takes a restart; no live key names a path, an address, a
listener or anything of access control.

A change is checked as at the start, the whole of it before any of it is in force. It is written to
the file that the broker was started with (`-c`), where a Java user expects it: the line of the key
is replaced, or one is added at the end, and the rest stays as it is. Without a file it holds until
the next start. A key that the environment or --set gives wins over the file at the next start.

The configuration's objects are frozen for everybody else.

Unlike RocketMQ, whose list names what is refused, and which ignores what it cannot read.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateBrokerConfig, getBrokerConfig), common/.../Configuration.java
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.config.config_file import (
    KEYS,
    ConfigOrigin,
    known_key,
    read_values,
    shown_value,
    values_of,
)
from skylarkmq.broker.config.properties_file import edit_properties
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.tables.json_table import first_version, next_version
from skylarkmq.broker.tables.persist import Journal
from skylarkmq.common.clock import Clock
from skylarkmq.common.config_fields import ConfigError, is_secret, keys_of
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)

Changed = Callable[[frozenset[str]], None]  # keys


class FixedKeyError(ConfigError):
    """A key that holds as long as the broker runs."""


class LiveConfig:
    """The configuration of a running broker. Loop thread.

    Attributes:
        version: changes with every change.
        listeners: called with the keys that have other values now.
        origin: where the configuration came from.
        kept: what was set while the broker runs, or before and it is known: key -> text.
        kept_changed: called with the keys of `kept` that were set.
        journal: returns when `kept` is in a log that other replicas have; None: there is none.
    """

    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        worker: Worker,
        clock: Clock,
    ) -> None:
        self.version: DataVersion = first_version(clock)
        self.listeners: list[Changed] = []
        self.origin = ConfigOrigin()
        self.kept: dict[str, str] = {}
        self.kept_changed: Callable[[frozenset[str]], None] | None = None
        self.journal: Journal | None = None
        self._before: dict[str, Any] = {}  # values of keys that have others now
        self._config = config
        self._files = files
        self._worker = worker
        self._clock = clock

    def rows(self) -> list[tuple[str, str]]:
        """Return every key with its value, sorted; secrets are left out."""
        return [
            (key, shown_value(value))
            for key, value in sorted(values_of(self._config).items())
            if not is_secret(key)
        ]

    def update(self, texts: Mapping[str, str]) -> Coroutine[Any, Any, str]:
        """Put changes in force at once; return a coroutine that writes them to the broker's file.

        Its result tells why a change does not outlive the broker; it is empty when it does.

        Raises:
            FixedKeyError: a key that takes a restart; nothing was changed.
            ConfigError: no such key, or a value that it does not take; nothing was changed.
        """
        texts = {known_key(key, text, KEYS): text for key, text in texts.items()}
        for key, text in texts.items():
            if key not in KEYS or not KEYS[key].effect.is_live:
                raise FixedKeyError(key, text, "it takes a restart")
        values = read_values(KEYS, texts)
        for part in (self._config, self._config.store):
            keys = keys_of(type(part))
            mine = {keys[name].attribute: values[name] for name in values if name in keys}
            dataclasses.replace(part, **mine)  # checks them
        self._put_in_force(values)
        self.kept.update(texts)
        if self.kept_changed is not None:
            self.kept_changed(frozenset(texts))
        return self._write(texts)

    def forget(self, key: str) -> None:
        """Have the value of a key that it had before it was set for the first time.

        The broker's file is not written: what was not kept did not come there.
        """
        self.kept.pop(key, None)
        if key in self._before:
            self._put_in_force({key: self._before.pop(key)})
            self._before.pop(key, None)

    def differs(self, texts: Mapping[str, str]) -> bool:
        """Return whether a key that is known here has another value than a text says.

        Raises:
            ConfigError: a value that its key does not take.
        """
        known = {key: text for key, text in texts.items() if key in KEYS}
        before = values_of(self._config)
        return any(before[key] != value for key, value in read_values(KEYS, known).items())

    def _put_in_force(self, values: Mapping[str, Any]) -> None:
        changed = self._apply(values)
        if changed:
            self.version = next_version(self.version, self._clock)
            for listener in self.listeners:
                listener(changed)

    def _apply(self, values: Mapping[str, Any]) -> frozenset[str]:
        """Set new values, and return the keys of those that differ from the old ones."""
        before = values_of(self._config)
        changed = frozenset(key for key in values if values[key] != before[key])
        for key in changed:
            old, new = shown_value(before[key]), shown_value(values[key])
            log.warning("%s is %s now, it was %s", key, new, old)
            self._before.setdefault(key, before[key])
            part = self._config if key in keys_of(type(self._config)) else self._config.store
            object.__setattr__(part, KEYS[key].attribute, values[key])
        return changed

    async def _write(self, texts: Mapping[str, str]) -> str:
        if self.journal is not None:
            await self._replicated(self.journal)
        path = self.origin.file
        if path is None:
            return "it holds until the next start: the broker was started without a file (-c)"

        def write() -> None:
            data = self._files.read_all(path)
            self._files.replace(path, edit_properties(data, texts), backup=True)

        try:
            await result_of(lambda done: self._worker.submit(write, done))
        except Exception as error:
            log.error("%s could not be written: %s", path, error)
            return f"it holds until the next start: {path} could not be written: {error}"
        return "; ".join(
            f"{key} comes from {self.origin.stronger[key]}, which wins at the next start"
            for key in texts
            if key in self.origin.stronger
        )

    @staticmethod
    async def _replicated(journal: Journal) -> None:
        try:
            await journal()
        except Exception as error:
            raise RemoteProtocolError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the change is in force, but would not survive this broker: {error}",
            ) from error
