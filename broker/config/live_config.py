"""Changing the configuration of a running broker (25), and telling it (26).

Only the keys of LIVE_KEYS: each is read anew whenever it counts, so a change holds from the next
request or round on. A key outside of the list takes a restart; none of them names a path, an
address, a listener or anything of access control.

A change is checked as at the start, the whole of it before any of it is in force. It is written to
the file that the broker was started with (`-c`), where a Java user expects it: the line of the key
is replaced, or one is added at the end, and the rest stays as it is. Without a file it holds until
the next start. A key that the environment or --set gives wins over the file at the next start.

The configuration's objects are frozen for everybody else.

Unlike RocketMQ, whose list names what is refused, and which passes over what it can not read.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateBrokerConfig, getBrokerConfig), common/.../Configuration.java
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skylarkmq.broker.config.config_file import known_key, read_values, shown_value
from skylarkmq.broker.config.properties_file import edit_properties
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.tables.json_table import first_version, next_version
from skylarkmq.common.clock import Clock
from skylarkmq.common.config_fields import ConfigError, key_of, types_of
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.bodies.text import DataVersion

log = logging.getLogger(__name__)

LIVE_KEYS: Final = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "cleanFileForciblyEnable",
        "compressedRegister",
        "defaultQueryMaxNum",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "fileReservedTime",
        "forceRegister",
        "maxGroups",
        "maxTopics",
        "maxTransferBytesOnMessageInDisk",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferCountOnMessageInMemory",
        "notifyConsumerIdsChangedEnable",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "slaveReadEnable",
        "startAcceptSendRequestTimeStamp",
        "storeReplyMessageEnable",
        "traceOn",
    }
)
_SECRET: Final = re.compile(r"password|secret|accesskey|token|credential", re.IGNORECASE)

Changed = Callable[[frozenset[str]], None]  # keys


@dataclass(frozen=True)
class ConfigOrigin:
    """Where a broker's configuration came from."""

    file: Path | None = None
    # Key -> place, of what the next start takes whatever the file says.
    stronger: Mapping[str, str] = field(default_factory=dict[str, str])


class FixedKeyError(ConfigError):
    """A key that holds as long as the broker runs."""


class LiveConfig:
    """The configuration of a running broker. Loop thread.

    Attributes:
        version: changes with every change.
        listeners: called with the keys that have other values now.
        origin: where the configuration came from.
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
        self._config = config
        self._files = files
        self._worker = worker
        self._clock = clock
        self._types = {key_of(name): (part, name) for part, name in _attributes(config)}

    def rows(self) -> list[tuple[str, str]]:
        """Every key with its value, but for secrets, sorted."""
        rows = [
            (key, shown_value(getattr(part, name))) for key, (part, name) in self._types.items()
        ]
        return sorted(row for row in rows if not is_secret(row[0]))

    def update(self, texts: Mapping[str, str]) -> Coroutine[Any, Any, str]:
        """Put changes in force at once; return a coroutine that writes them to the broker's file.

        Its result tells why a change does not outlive the broker; it is empty when it does.

        Raises:
            FixedKeyError: a key that takes a restart; nothing was changed.
            ConfigError: no such key, or a value that it does not take; nothing was changed.
        """
        wanted = {key: types_of(type(part))[name] for key, (part, name) in self._types.items()}
        texts = {known_key(key, text, wanted): text for key, text in texts.items()}
        for key, text in texts.items():
            if key not in LIVE_KEYS:
                raise FixedKeyError(key, text, "it takes a restart; set it where that is done")
        values = read_values(wanted, texts)
        for part in (self._config, self._config.store):
            mine = {name: values[key] for key, name in self._of(part) if key in values}
            dataclasses.replace(part, **mine)  # checks them
        changed = self._apply(values)
        if changed:
            self.version = next_version(self.version, self._clock)
            for listener in self.listeners:
                listener(changed)
        return self._write(texts)

    def _of(self, wanted: object) -> list[tuple[str, str]]:
        return [(key, name) for key, (part, name) in self._types.items() if part is wanted]

    def _apply(self, values: Mapping[str, Any]) -> frozenset[str]:
        changed: set[str] = set()
        for key, value in values.items():
            part, name = self._types[key]
            before = getattr(part, name)
            if before != value:
                log.warning("%s is %s now, it was %s", key, shown_value(value), shown_value(before))
                object.__setattr__(part, name, value)
                changed.add(key)
        return frozenset(changed)

    async def _write(self, texts: Mapping[str, str]) -> str:
        path = self.origin.file
        if path is None:
            return "it holds until the next start: the broker was started without a file (-c)"
        written: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

        def job() -> None:
            data = self._files.read_all(path)
            self._files.replace(path, edit_properties(data, texts), backup=True)

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                log.error("%s could not be written: %s", path, error)
            if not written.done():
                written.set_result(error)

        self._worker.submit(job, done)
        error = await written
        if error is not None:
            return f"it holds until the next start: {path} could not be written: {error}"
        return "; ".join(
            f"{key} comes from {self.origin.stronger[key]}, which wins at the next start"
            for key in texts
            if key in self.origin.stronger
        )


def is_secret(key: str) -> bool:
    """Whether the value of a key is shown to nobody."""
    return _SECRET.search(key) is not None


def _attributes(config: BrokerConfig) -> list[tuple[Any, str]]:
    parts: tuple[Any, ...] = config, config.store
    return [(part, name) for part in parts for name in types_of(type(part)) if name != "store"]
