"""Namespaces: names of one user's own on a cluster that several share."""

from __future__ import annotations

from skylarkmq.client import Admin, Client, Message, Producer, ReceivedMessage, TransactionState
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox, consuming, received
from tests.support.patience import LIMIT_S


async def test_two_namespaces_do_not_meet(cluster: Cluster, client: Client) -> None:
    """Neither in topics nor in groups; retries, dead letters, transactions and requests work."""
    topic, group = cluster.unique("T"), cluster.unique("G")
    name = cluster.unique("P")
    async with cluster.client(namespace="ns-a") as one, cluster.client(namespace="ns-b") as two:
        for each in (one, two):
            async with Admin(client=each) as admin:
                await admin.create_topic(topic, queues=2)
                assert topic in await admin.list_topics()
        async with (
            Producer(client=one, group=name, check=lambda _: TransactionState.COMMIT) as producer,
            consuming(one, topic, group, Inbox(fail=99), max_reconsume=1) as inbox,
        ):
            await producer.send(Message(topic, "mine"))
            async with producer.transaction(Message(topic, "in a transaction")):
                pass
            await inbox.count(4)
            dead = await received(one, f"%DLQ%{group}", f"{group}_dead", 2)
        async with Producer(client=two) as producer:

            async def answer(message: ReceivedMessage) -> None:
                await producer.reply(message, f"re: {message.body.decode()}")

            async with consuming(two, topic, group, answer) as other:
                reply = await producer.request(Message(topic, "theirs"), LIMIT_S)
    assert {message.topic for message in inbox.messages} == {topic}
    assert {message.body for message in dead} == {b"mine", b"in a transaction"}
    assert (other.bodies, reply.body) == (["theirs"], b"re: theirs")
    async with Admin(client=client) as admin:
        names = await admin.list_topics()
        assert {f"ns-a%{topic}", f"ns-b%{topic}"} <= {*names}
