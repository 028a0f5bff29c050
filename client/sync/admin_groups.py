"""Groups, who is in them and where they stand, blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from skylarkmq.client.admin.offsets import Edge
from skylarkmq.client.admin.results import (
    Connection,
    ConsumedDirectly,
    GroupDescription,
    GroupMembers,
    GroupProgress,
    MemberInfo,
    OffsetReset,
)
from skylarkmq.client.sync.admin_part import AdminPart
from skylarkmq.protocol.message import MessageQueue


class GroupAdmin(AdminPart):
    """The part of Admin for groups and clients; see `skylarkmq.client.Admin`."""

    def create_group(
        self,
        group: str,
        *,
        retry_queues: int = 1,
        max_retries: int = 16,
        consume_enabled: bool = True,
        broadcast_enabled: bool = True,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a consumer group; needed only where brokers create none on demand."""
        self._inner.run(
            lambda it: it.create_group(
                group,
                retry_queues=retry_queues,
                max_retries=max_retries,
                consume_enabled=consume_enabled,
                broadcast_enabled=broadcast_enabled,
                cluster=cluster,
                brokers=brokers,
                exist_ok=exist_ok,
            )
        )

    def update_group(
        self,
        group: str,
        *,
        retry_queues: int | None = None,
        max_retries: int | None = None,
        consume_enabled: bool | None = None,
        broadcast_enabled: bool | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the group or on those named."""
        self._inner.run(
            lambda it: it.update_group(
                group,
                retry_queues=retry_queues,
                max_retries=max_retries,
                consume_enabled=consume_enabled,
                broadcast_enabled=broadcast_enabled,
                brokers=brokers,
            )
        )

    def delete_group(
        self, group: str, *, remove_offsets: bool = True, remove_messages: bool = False
    ) -> None:
        """Delete a group from all brokers. Nothing happens to one that is not there."""
        self._inner.run(
            lambda it: it.delete_group(
                group, remove_offsets=remove_offsets, remove_messages=remove_messages
            )
        )

    def list_groups(self, *, system: bool = False) -> list[str]:
        """Return the consumer groups that brokers know, sorted; of the client's namespace only."""
        return self._inner.run(lambda it: it.list_groups(system=system))

    def describe_group(self, group: str) -> GroupDescription:
        """Return settings and members of a group."""
        return self._inner.run(lambda it: it.describe_group(group))

    def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return how far a group is in every queue it has consumed, or in those of one topic."""
        return self._inner.run(lambda it: it.progress(group, topic))

    def consumers(self, group: str) -> GroupMembers:
        """Return the members of a consumer group, over all brokers; none is no error."""
        return self._inner.run(lambda it: it.consumers(group))

    def producers(self, group: str) -> list[Connection]:
        """Return the clients of a producer group, over all brokers; none is no error."""
        return self._inner.run(lambda it: it.producers(group))

    def producer_groups(self) -> dict[str, list[Connection]]:
        """Return all producers by group, over all brokers."""
        return self._inner.run(lambda it: it.producer_groups())

    def member_info(self, group: str, client_id: str, *, stack: bool = False) -> MemberInfo:
        """Ask a member of a group, through its broker, what it is doing."""
        return self._inner.run(lambda it: it.member_info(group, client_id, stack=stack))

    def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumedDirectly:
        """Let one member consume one message now, whatever the group's offsets are."""
        return self._inner.run(lambda it: it.consume_directly(group, client_id, offset_msg_id))


class OffsetAdmin(AdminPart):
    """The part of Admin for where groups stand; see `skylarkmq.client.Admin`."""

    def reset_offset(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | Edge | None = None,
        offset: int | Mapping[MessageQueue, int] | None = None,
        dry_run: bool = False,
    ) -> OffsetReset:
        """Let a group go on elsewhere in a topic, whether it has members now or not."""
        return self._inner.run(
            lambda it: it.reset_offset(group, topic, when=when, offset=offset, dry_run=dry_run)
        )

    def skip_accumulated(self, group: str, topic: str, *, dry_run: bool = False) -> OffsetReset:
        """Let a group go on with the next message to be stored; what waits is never consumed."""
        return self._inner.run(lambda it: it.skip_accumulated(group, topic, dry_run=dry_run))

    def clone_offsets(self, source: str, target: str, topic: str | None = None) -> None:
        """Let group `target` stand where `source` stands, in one topic or in all of its."""
        self._inner.run(lambda it: it.clone_offsets(source, target, topic))
