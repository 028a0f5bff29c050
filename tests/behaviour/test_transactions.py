"""Messages that appear when a transaction has happened, and else never."""

from __future__ import annotations

import pytest

from skylarkmq.client import Client, HalfMessage, Message, Producer, TransactionState
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import consuming


@pytest.mark.slow
async def test_verdicts_and_checks(
    cluster: Cluster, client: Client, topic: str, group: str
) -> None:
    """Those that know their end say so; the broker asks about the others."""
    asked: dict[str, int] = {}

    async def check(half: HalfMessage) -> TransactionState:
        text = half.body.decode()
        asked[text] = asked.get(text, 0) + 1
        assert half.topic == topic
        if text == "asked-commit" or asked.get("asked-twice") == 2:
            return TransactionState.COMMIT
        return TransactionState.UNKNOWN if text == "asked-twice" else TransactionState.ROLLBACK

    async with (
        Producer(client=client, group=cluster.unique("P"), check=check) as producer,
        consuming(client, topic, group) as inbox,
    ):
        for text in ("asked-commit", "asked-rollback", "asked-twice"):
            async with producer.transaction(Message(topic, text)) as transaction:
                await transaction.unknown()
        async with producer.transaction(Message(topic, "commit", keys="k", tags="A")) as committed:
            pass
        with pytest.raises(RuntimeError, match="on purpose"):
            async with producer.transaction(Message(topic, "rollback")):
                raise RuntimeError("on purpose")
        await inbox.wait(
            lambda: (
                {*inbox.bodies} >= {"commit", "asked-commit", "asked-twice"}
                and "asked-rollback" in asked
            )
        )
    assert sorted(inbox.bodies) == ["asked-commit", "asked-twice", "commit"]
    assert "commit" not in asked
    assert "rollback" not in asked
    (plain,) = [message for message in inbox.messages if message.body == b"commit"]
    assert (plain.msg_id, plain.keys, plain.tags) == (committed.result.msg_id, "k", "A")


async def test_another_member_of_the_group_answers(
    cluster: Cluster, topic: str, group: str
) -> None:
    """The process that began it is gone."""
    name = cluster.unique("P")

    def check(_: HalfMessage) -> TransactionState:
        return TransactionState.COMMIT

    async with (
        cluster.client() as gone,
        Producer(client=gone, group=name, check=check) as producer,
        producer.transaction(Message(topic, "orphan")) as transaction,
    ):
        await transaction.unknown()
    async with (
        cluster.client() as other,
        Producer(client=other, group=name, check=check),
        consuming(other, topic, group) as inbox,
    ):
        (got,) = await inbox.count(1)
        assert got.msg_id == transaction.transaction_id
