"""Queue locks for a FakeBroker: 41 and 42 by the rules of a real broker, over the test's clock."""

from __future__ import annotations

from skylarkmq.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import ManualClock
from tests.support.scripted_stream import Answer, ScriptedStream

LIFE_S = 60.0


class LockingBroker(FakeBroker):
    """A FakeBroker that keeps locks: group and queue to owner."""

    clock: ManualClock
    owners: dict[tuple[str, MessageQueueBody], tuple[str, float]]

    def respond(self, request: RemotingCommand, stream: ScriptedStream) -> Answer | list[Answer]:
        if not self.silent and not self.refusals[request.code]:
            if request.code == RequestCode.LOCK_BATCH_MQ:
                return self._lock(request)
            if request.code == RequestCode.UNLOCK_BATCH_MQ:
                return self._unlock(request)
        return super().respond(request, stream)

    def owner(self, group: str, topic: str, queue_id: int) -> str | None:
        """The client id that holds the lock."""
        queue = MessageQueueBody(broker_name=self.name, queue_id=queue_id, topic=topic)
        client_id, until_s = self.owners.get((group, queue), (None, 0.0))
        return client_id if until_s > self.clock.monotonic() else None

    def seize(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Give the lock to somebody else."""
        queue = MessageQueueBody(broker_name=self.name, queue_id=queue_id, topic=topic)
        self.owners[group, queue] = client_id, self.clock.monotonic() + 1e9

    def _lock(self, request: RemotingCommand) -> Answer:
        body = decode_body(LockBatchRequestBody, request.body)
        granted: list[MessageQueueBody] = []
        for queue in body.mq_set:
            if self.owner(body.consumer_group, queue.topic, queue.queue_id) in (
                None,
                body.client_id,
            ):
                until_s = self.clock.monotonic() + LIFE_S
                self.owners[body.consumer_group, queue] = body.client_id, until_s
                granted.append(queue)
        answer = LockBatchResponseBody(lock_ok_mq_set=granted)
        return request.reply(0, body=encode_body(answer))

    def _unlock(self, request: RemotingCommand) -> Answer:
        body = decode_body(UnlockBatchRequestBody, request.body)
        for queue in body.mq_set:
            if self.owner(body.consumer_group, queue.topic, queue.queue_id) == body.client_id:
                del self.owners[body.consumer_group, queue]
        return request.reply(0)
