"""Calls that the broker makes to its clients, over the connections that their heartbeats came by.

A request holds its body until the client has answered, and a client may never answer: there are
limits for one client (`connection.py`) and for all of them together.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/net/Broker2Client.java,
broker/.../client/DefaultConsumerIdsChangeListener.java
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from skylarkmq.broker.groups.memberships import Member
from skylarkmq.broker.net.fast_failure import OVERLOAD
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.group import NotifyConsumerIdsChangedRequestHeader

CALLS_MAX: Final = 4096
CALLS_SIZE_MAX: Final = 64 << 20
"""Bytes of the bodies that wait for answers; one body may be larger."""
OUTCOMES: Final = ("ok", "error", "timeout", "gone", "refused")


class ClientCalls:
    """Tells clients what they should know, and asks them. Loop thread.

    Attributes:
        outcomes: how many requests had each outcome of `OUTCOMES`.
        waiting_count: requests that clients have not answered yet.
        waiting_size: bytes of their bodies.
    """

    def __init__(self, may_notify: Callable[[str], bool]) -> None:
        """Make the calls.

        Args:
            may_notify: returns whether the members of a group are told of each other: both switches
                `notifyConsumerIdsChangedEnable`, the broker's and the group's, are on.
        """
        self._may_notify = may_notify
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.waiting_count = 0
        self.waiting_size = 0

    def notify_consumer_ids_changed(self, connections: Collection[Member], group: str) -> None:
        """Tell the members of a group to divide its queues again (40, one-way)."""
        if not connections or not self._may_notify(group):
            return
        fields = encode_fields(NotifyConsumerIdsChangedRequestHeader(consumer_group=group))
        for connection in connections:
            connection.push(
                RemotingCommand.request(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, oneway=True
                )
            )

    async def call(
        self, client: Member, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Ask a client and wait for its answer, whatever its code.

        Raises:
            RemoteProtocolError: SYSTEM_BUSY; too many requests wait for clients.
            TimeoutError: no answer within `timeout_s`.
            ConnectionFailed: the client is gone, or leaves too many requests unanswered.
        """
        size = len(command.body)
        self._check_room(size)
        self.waiting_count += 1
        self.waiting_size += size
        outcome = "gone"
        try:
            answer = await client.call(command, timeout_s)
            outcome = "ok" if answer.code == ResponseCode.SUCCESS else "error"
            return answer
        except TimeoutError:
            outcome = "timeout"
            raise
        finally:
            self.waiting_count -= 1
            self.waiting_size -= size
            self.outcomes[outcome] += 1

    def _check_room(self, size: int) -> None:
        count, waiting = self.waiting_count, self.waiting_size
        if count < CALLS_MAX and (not waiting or waiting + size <= CALLS_SIZE_MAX):
            return
        self.outcomes["refused"] += 1
        raise RemoteProtocolError(
            ResponseCode.SYSTEM_BUSY,
            f"{OVERLOAD}, {count} requests with {waiting} bytes wait for clients to answer, "
            f"{CALLS_MAX} and {CALLS_SIZE_MAX} may",
        )
