"""The consumer groups of this broker and `config/subscriptionGroup.json`.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../subscription/SubscriptionGroupManager.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.tables.config_table import ConfigTable
from skylarkmq.broker.tables.json_table import load_table
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol import flags
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig, SubscriptionGroupWrapper
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError

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


class SubscriptionGroupManager(ConfigTable[SubscriptionGroupConfig]):
    """The table of consumer groups. Loop thread, but for `load`.

    Attributes:
        deletion_listeners: called with the name of each group that is deleted.
    """

    def __init__(
        self, config: BrokerConfig, files: Files, writer: TableWriter, clock: Clock
    ) -> None:
        super().__init__(GROUPS_FILE, "subscriptionGroupTable", config, files, writer, clock)
        self._has_no_file = False
        self.deletion_listeners: list[Callable[[str], None]] = []
        self.follows = config.store.is_slave  # another broker's table: nothing is made here

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
        self.table |= groups_of(loaded, str(self._path))
        self.data_version = loaded.data_version
        return True

    def start(self) -> None:
        """Write the file when there is none: from now on a missing one is a lost one."""
        if self._has_no_file:
            self.changed()

    def find(self, group: str, remote_address: str = "") -> SubscriptionGroupConfig | None:
        """Return a group's configuration; make it when groups are made on demand.

        A slave makes none: a group that its master has not told yet has the default settings.

        Args:
            remote_address: who names it; empty for an administrator.

        Raises:
            RemoteProtocolError: the name cannot be a group, there is no room for another, or its
                address makes too many.
        """
        existing = self.table.get(group)
        if existing is not None:
            return existing
        if not self._config.auto_create_subscription_group and not group.startswith(
            flags.CID_RMQ_SYS_PREFIX
        ):
            return None
        created = SubscriptionGroupConfig(group_name=group)
        self._check(group)
        if self.follows:
            return created
        if remote_address:
            self._new_names.check(remote_address, group)
        self.update(created)
        log.info("group %s made", group)
        return created

    def update(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace a group; the caller has checked who may do so.

        Raises:
            RemoteProtocolError: the name cannot be a group, or there is no room for another.
        """
        name = group.group_name
        self._check(name)
        self._add_row(name, group)

    def follow(self, group: SubscriptionGroupConfig) -> None:
        """Create or replace a group as another broker did, which has checked it."""
        self._add_row(group.group_name, group)

    def _check(self, name: str) -> None:
        why = flags.validate_group(name)
        if why is None and name not in self.table and len(self.table) >= self._config.max_groups:
            count, limit = len(self.table), self._config.max_groups
            why = f"no room for group {name}: there are {count}, maxGroups={limit}"
        if why is not None:
            raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)

    def delete(self, name: str) -> None:
        """Remove a group; nothing happens when it is not there."""
        if self._remove_row(name):
            log.info("group %s deleted", name)
            for listener in self.deletion_listeners:
                listener(name)


def groups_of(wrapper: SubscriptionGroupWrapper, origin: str) -> dict[str, SubscriptionGroupConfig]:
    """Return the groups of a file or a body by name; what cannot be one is logged and left out."""
    groups: dict[str, SubscriptionGroupConfig] = {}
    for name, group in wrapper.subscription_group_table.items():
        why = flags.validate_group(name)
        if why is None:
            groups[name] = msgspec.structs.replace(group, group_name=name)
        else:
            log.error("%s: leaving out a group: %s", origin, why)
    return groups
