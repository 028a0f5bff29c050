"""Broadcasting: each member gets everything, and goes on where it was by a file of its own."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.client import Message, MessageQueue, Producer, ReceivedMessage
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox, consuming, numbered, send_numbered


async def test_each_member_gets_every_message_and_goes_on_after_a_restart(
    cluster: Cluster, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    members = [cluster.client(instance_name=f"member-{number}") for number in range(2)]
    await send_numbered(producer, topic, "m", 20)
    for member in members:
        async with (
            member,
            consuming(member, topic, group, model="broadcasting", offsets_folder=tmp_path) as inbox,
        ):
            await inbox.count(20)
        assert sorted(inbox.bodies) == numbered("m", 20)

    await send_numbered(producer, topic, "late", 5)
    for number in range(2):
        async with (
            cluster.client(instance_name=f"member-{number}") as again,
            consuming(again, topic, group, model="broadcasting", offsets_folder=tmp_path) as inbox,
        ):
            await inbox.count(5)
        assert sorted(inbox.bodies) == numbered("late", 5), "the file has the rest"


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
