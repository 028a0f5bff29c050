"""Broadcasting: what fails is tried again by the member itself, without a broker."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.client import Message, MessageQueue, Producer, ReceivedMessage
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox, consuming


async def test_a_failure_is_tried_again_by_the_member_itself(
    cluster: Cluster, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    async def later(message: ReceivedMessage) -> None:
        if message.reconsume_times == 0:
            await message.nack(delay_level=1)

    async with (
        cluster.client(instance_name="member") as member,
        consuming(
            member,
            topic,
            group,
            Inbox(also=later),
            model="broadcasting",
            offsets_folder=tmp_path,
        ) as inbox,
    ):
        await producer.send(Message(topic, "m-0"))
        first, again = await inbox.count(2)
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        assert again.queue == first.queue != MessageQueue(f"%RETRY%{group}", "broker-a", 0)
