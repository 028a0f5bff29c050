"""The consumer groups of this broker and `config/subscriptionGroup.json`.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../subscription/SubscriptionGroupManager.java
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import msgspec

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.tables.data_version import first_version, next_version
from skylarkmq.broker.tables.persist import Done, TableFile, load_table, table_text
from skylarkmq.broker.tables.table_body import TableBody
from skylarkmq.broker.topics.new_names import NewNames
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol import flags
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.folder import StorePaths

log = logging.getLogger(__name__)

GROUPS_FILE: Final = "subscriptionGroup.json"
BUILT_IN_GROUPS: Final = (
    flags.TOOLS_CONSUMER_GROUP,
    flags.FILTERSRV_CONSUMER_GROUP,
    flags.SELF_TEST_CONSUMER_GROUP,
    flags.ONS_HTTP_PROXY_GROUP,
    flags.CID_ONSAPI_PULL_GROUP,
    flags.CID_ONSAPI_PERMISSION_GROUP,
    flags.CID_ONSAPI_OWNER_GROUP,
)


class SubscriptionGroupManager:
    """The table of consumer groups. Loop thread, but for `load`.

    Attributes:
        table: the groups by name; changed by the methods alone.
        data_version: changes with every change of the table.
        body: the whole table as an answer.
    """

    def __init__(
        self, config: BrokerConfig, files: Files, writer: TableWriter, clock: Clock
    ) -> None:
        self.table: dict[str, SubscriptionGroupConfig] = {}
        self.data_version: DataVersion = first_version(clock)
        self._auto_create = config.auto_create_subscription_group
        self._config = config
        self._new_names = NewNames(clock, config.new_names_per_second)
        self._files = files
        self._clock = clock
        self._path = StorePaths(config.store.store_path_root_dir).config / GROUPS_FILE
        self._file = TableFile(writer, self._path, self._take)
        self.body = TableBody(
            "subscriptionGroupTable",
            lambda: self.data_version,
            lambda: self.table.copy().items(),
            lambda: self.data_version,
        )
        self._has_no_file = False

    def load(self) -> bool:
        """Make the built-in groups and read the file. Blocks; before the broker serves.

        Returns:
            Whether there was a file.

        Raises:
            CorruptFileError: neither the file nor its `.bak` can be read.
        """
        self.table = {name: SubscriptionGroupConfig(group_name=name) for name in BUILT_IN_GROUPS}
        loaded = load_table(self._files, self._path, SubscriptionGroupWrapper)
        if loaded is None:
            self._has_no_file = True
            return False
        for name, group in loaded.subscription_group_table.items():
            why = flags.validate_group(name)
            if why is not None:
                log.error("%s: leaving out a group: %s", self._path, why)
                continue
            self.table[name] = msgspec.structs.replace(group, group_name=name)
        self.data_version = loaded.data_version
        return True

    def start(self) -> None:
        """Write the file when there is none: from now on a missing one is a lost one."""
        if self._has_no_file:
            self._file.changed()

    def find(self, group: str, remote_address: str = "") -> SubscriptionGroupConfig | None:
        """Return a group's configuration; make it when groups are made on demand.

        Args:
            remote_address: who names it; empty for an administrator.

        Raises:
            RemoteProtocolError: the name can not be a group, there is no room for another, or its
                address makes too many.
        """
        existing = self.table.get(group)
        if existing is not None:
            return existing
        if not self._auto_create and not group.startswith(flags.CID_RMQ_SYS_PREFIX):
            return None
        created = SubscriptionGroupConfig(group_name=group)
        self._check(group)
        if remote_address:
            self._new_names.check(remote_address, group)
        self.update(created)
        log.info("group %s made", group)
        return created

    def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace a group; the caller has checked who may do so.

        Raises:
            RemoteProtocolError: the name can not be a group, or there is no room for another.
        """
        name = group.group_name
        self._check(name)
        self.table[name] = group
        self.data_version = next_version(self.data_version, self._clock)
        self._file.changed()

    def _check(self, name: str) -> None:
        why = flags.validate_group(name)
        if why is None and name not in self.table and len(self.table) >= self._config.max_groups:
            count, limit = len(self.table), self._config.max_groups
            why = f"no room for group {name}: there are {count}, maxGroups={limit}"
        if why is not None:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)

    def disable_consume(self, name: str) -> bool:
        """Let a group consume no more; False when there is none that may."""
        group = self.table.get(name)
        if group is None or not group.consume_enable:
            return False
        self.update(msgspec.structs.replace(group, consume_enable=False))
        return True

    def delete(self, name: str) -> None:
        """Remove a group; nothing happens when it is not there."""
        if self.table.pop(name, None) is not None:
            log.info("group %s deleted", name)
            self.data_version = next_version(self.data_version, self._clock)
            self._file.changed()

    @property
    def pending(self) -> bool:
        """Whether something changed that is not on the disk yet."""
        return self._file.pending

    def persisted(self, done: Done) -> None:
        """Call `done` once all changes so far are on the disk, or with what kept them from it."""
        self._file.persisted(done)

    async def flush(self) -> None:
        """Return when everything is on the disk; a failure is logged."""
        await self._file.flush()

    def _take(self) -> Text:
        return partial(table_text, "subscriptionGroupTable", self.table.copy(), self.data_version)
