"""RocketMQ's message trace: what producer and consumer tell, as the administration reads it."""

from __future__ import annotations

from skylarkmq.client import (
    Admin,
    Client,
    Message,
    Producer,
    TransactionState,
)
from skylarkmq.client.admin.traces import MessageTrace
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import consuming
from tests.support.patience import until


async def test_a_message_sent_and_consumed(
    cluster: Cluster, client: Client, topic: str, group: str
) -> None:
    name = cluster.unique("P")
    async with Producer(client=client, group=name, trace=True) as producer:
        sent = await producer.send(Message(topic, "abc", tags="A", keys="k"))
    async with consuming(client, topic, group, trace=True) as inbox:
        await inbox.count(1)
    async with Admin(client=client) as admin:

        async def told() -> MessageTrace | None:
            trace = await admin.trace(sent.msg_id)
            return trace if trace.deliveries and trace.deliveries[0].success else None

        trace = await until(told, "the trace")
    assert trace is not None
    (send,) = trace.sends
    assert (send.group, send.topic, send.tags, send.keys) == (name, topic, "A", "k")
    assert (send.size, send.kind, send.success) == (3, "normal", True)
    assert (send.store_host, send.offset_msg_id) == (cluster.address, sent.offset_msg_id)
    (delivery,) = trace.deliveries
    assert (delivery.group, delivery.retries, delivery.outcome) == (group, 0, "success")


async def test_a_transaction(cluster: Cluster, client: Client, topic: str) -> None:
    async with Producer(
        client=client,
        group=cluster.unique("P"),
        trace=True,
        check=lambda _: TransactionState.COMMIT,
    ) as producer:
        async with producer.transaction(Message(topic, "abc")) as transaction:
            pass
        await producer.flush()
    async with Admin(client=client) as admin:

        async def told() -> MessageTrace | None:
            trace = await admin.trace(transaction.transaction_id)
            return trace if trace.sends and trace.ends else None

        trace = await until(told, "the trace")
    assert trace is not None
    assert [send.kind for send in trace.sends] == ["half"]
    assert [(end.state, end.from_check) for end in trace.ends] == [("COMMIT_MESSAGE", False)]
