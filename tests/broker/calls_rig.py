"""Clients that are asked things by the broker, over tables and a store of the test's own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData, SubscriptionGroupConfig
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from skylarkmq.remoting.errors import ConnectionFailed, RequestTimeout
from skylarkmq.remoting.pending_calls import FutureWaiter, PendingCalls
from tests.broker.group_rig import FakeConnection, GroupRig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock

GROUP = "g"


class Client(FakeConnection, PendingCalls):
    """A peer that can be asked; `asked` are the requests that it has not answered."""

    def __init__(self, clock: ManualClock, name: str = "192.0.2.1:1") -> None:
        FakeConnection.__init__(self, name)
        PendingCalls.__init__(self, clock)
        self.host_bytes = b"\xc0\x00\x02\x01\x00\x00\x00\x01"
        self.asked: list[RemotingCommand] = []

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        if self.closed:
            raise ConnectionFailed(self.remote_address, "cannot be asked")
        command.opaque = self.take_opaque()
        waiter = FutureWaiter(self._clock.monotonic() + timeout_s)
        self.expect(command.opaque, waiter)
        self.asked.extend(map(decode_command, FrameDecoder().feed(encode_command(command))))
        try:
            return await waiter.future
        except RequestTimeout:
            why = f"{self.remote_address} did not answer in {timeout_s:g} s"
            raise RequestTimeout(why) from None

    def answer(self, code: int = 0, remark: str | None = None, body: bytes = b"") -> None:
        """Answer the oldest request."""
        asked = self.asked.pop(0)
        self.answered(asked.reply(code, remark, {"told": "yes"}, body))

    def close(self, reason: str = "peer") -> None:
        super().close(reason)
        self.fail_calls(ConnectionFailed(self.remote_address, "has left"))


class CallsRig(GroupRig):
    """Groups with members that can be asked."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **config)
        self.client_calls = ClientCalls(lambda group: True)

    def group(self, name: str = GROUP) -> None:
        """Make a group, durable."""
        self.groups.update(SubscriptionGroupConfig(group_name=name))
        self.workers.run_all()

    def fill(self, topic: str, queue_id: int, count: int) -> list[int]:
        """Store messages a second apart; return their store times, ms."""
        times: list[int] = []
        for _ in range(count):
            times.append(self.clock.now_ms())
            self.put(topic, queue_id)
            self.clock.advance(1)
        return times

    def stand(self, topic: str, places: dict[int, int], group: str = GROUP) -> None:
        """Commit offsets by queue."""
        for queue_id, offset in places.items():
            self.offsets.keep("x", group, topic, queue_id, offset)

    def join(
        self,
        *topics: str,
        group: str = GROUP,
        name: str = "192.0.2.1:1",
        language: LanguageCode = LanguageCode.JAVA,
        version: int = 409,
    ) -> Any:
        """A member of a group; its client id is `client@` and its address."""
        client: Any = Client(self.clock, name)
        self.register(client, topics, group=group, language=language, version=version)
        return client

    def register(
        self,
        client: Any,
        topics: Collection[str],
        *,
        group: str = GROUP,
        language: LanguageCode = LanguageCode.JAVA,
        version: int = 409,
    ) -> None:
        """What the member's heartbeat does."""
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_PASSIVELY",
            group_name=group,
            message_model="CLUSTERING",
            subscription_data_set=[SubscriptionData(topic=t, sub_string="*") for t in topics],
        )
        client_id = f"client@{client.remote_address}"
        self.consumers.register(client, client_id, language, version, data)
        for member in self.consumers.members(group):
            member.pushes.clear()  # what they hear of each other
