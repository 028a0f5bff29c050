"""A store changes hands with all that is in it and waits in it: theirs, ours, theirs.

Messages, topics and offsets; transactions that nobody has decided, delayed messages, and the
filters of consumers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools, bodies, numbered, receives

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]

KEYS: dict[str, Any] = {
    # Enough for RocketMQ's clean stop, which takes ten seconds and goes on asking.
    "messageDelayLevel": "1s 20s",
    "transactionCheckMax": 60,
    # Filters leave their marks in the queues, too.
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
}
TURNS = 3
QUEUES = 3


def test_a_store_changes_hands(children: Children, topic: str, group: str) -> None:
    """Each finishes what the one before has left, and nothing comes twice."""
    folder = children.folder / "shared"
    folder.mkdir()
    theirs, ours = (kind(children, folder, **KEYS) for kind in (ApacheBroker, SkylarkBroker))
    brokers: list[Broker] = [theirs, ours, theirs]
    filters = []
    for turn, broker in enumerate(brokers):
        broker.start()
        hands = Hands(JavaTools(children, broker), JavaAdmin(children, broker), topic, group)
        if turn:
            hands.find_transactions(turn - 1)
            hands.find_delayed(turn - 1)
        else:
            hands.create_topics()
        hands.use_queues(turn)
        hands.use_filter(turn)
        hands.use_transactions(turn)
        if turn == TURNS - 1:
            break
        hands.leave(turn)
        broker.stop()
        filters.append(kept_filter(folder, f"{topic}_sql", group))
    first, second = filters
    assert first["expression"] == "row > 2"
    for name in ("bornTime", "bloomFilterData", "expression", "expressionType", "consumerGroup"):
        assert first[name] == second[name]


class Hands:
    """What one turn does with one broker."""

    def __init__(self, tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
        self._tools = tools
        self._admin = admin
        self._group = group
        self._transactions, self._delayed, self._filtered, self._plain = (
            f"{topic}_{kind}" for kind in ("tx", "late", "sql", "plain")
        )

    def create_topics(self) -> None:
        for topic in (self._transactions, self._delayed, self._filtered):
            self._tools.queues(topic, create=1)
        self._tools.queues(self._plain, create=QUEUES)

    def use_queues(self, turn: int) -> None:
        """The topic, its messages and the place of a group are those of the turns before."""
        tools, topic, group = self._tools, self._plain, self._group
        assert len(tools.queues(topic)) == QUEUES
        left = numbered(f"batch{turn - 1}", 5) if turn else []
        tools.produce(topic, "sync", 8, prefix=f"turn{turn}")
        consumer = tools.consume(topic, group)
        received = consumer.count("message", 8 + len(left))
        # RocketMQ's broker may lose one of a group's first commits when two arrive at once; the
        # consumer commits again while it lives.
        # Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../ConsumerOffsetManager.java
        # (commitOffset)
        admin = self._admin
        admin.until("all is confirmed", lambda: not any(admin.left_to_read(group, topic).values()))
        consumer.finish()
        assert bodies(received) == sorted(left + numbered(f"turn{turn}", 8))
        sent = [body for past in range(turn) for body in numbered(f"batch{past}", 5)]
        sent += [body for past in range(turn + 1) for body in numbered(f"turn{past}", 8)]
        received = tools.received(topic, f"{group}_{turn}", len(sent))
        assert bodies(received) == sorted(sent)
        tools.produce(topic, "batch", 5, prefix=f"batch{turn}")

    def use_transactions(self, turn: int) -> None:
        producer = self._tools.transact(
            self._transactions, "P_shared", count=4, local="commit,rollback", prefix=f"done{turn}"
        )
        producer.finish()
        received = self._tools.received(self._transactions, self._group, 2)
        assert bodies(received) == [f"done{turn}-0", f"done{turn}-2"]

    def use_filter(self, turn: int) -> None:
        """A consumer finds what matches of what came while it was away, and of what comes now."""
        topic, tools = self._filtered, self._tools
        tools.produce(topic, "sync", 4, prefix=f"before{turn}")
        expected = [f"left{turn - 1}-3"] if turn else []
        expected += [f"before{turn}-3", f"turn{turn}-3"]
        consumer = tools.consume(topic, self._group, sql="row > 2")
        tools.produce(topic, "sync", 4, prefix=f"turn{turn}")
        consumer.count("message", len(expected))
        consumer.finish()
        assert bodies(consumer.named("message")) == sorted(expected)

    def leave(self, turn: int) -> None:
        """What the next one has to finish."""
        tools = self._tools
        tools.produce(self._filtered, "sync", 4, prefix=f"left{turn}")
        tools.produce(self._delayed, "sync", 3, prefix=f"late{turn}", delay=2)
        producer = tools.transact(
            self._transactions,
            "P_shared",
            count=3,
            local="unknown",
            check="unknown",
            prefix=f"open{turn}",
        )
        producer.kill()

    def find_delayed(self, turn: int) -> None:
        received = self._tools.received(self._delayed, self._group, 3)
        assert bodies(received) == numbered(f"late{turn}", 3)
        for event in received:
            assert event["store_timestamp"] - event["born_timestamp"] >= 20_000

    def find_transactions(self, turn: int) -> None:
        """A producer of the group is asked, and what it commits comes, once each."""
        topic, tools = self._transactions, self._tools
        decisions = "commit,rollback,commit"
        producer = tools.transact(topic, "P_shared", count=0, check=decisions)
        consumer = tools.consume(topic, self._group)
        expected = [f"open{turn}-0", f"open{turn}-2"]
        consumer.count("message", len(expected))
        tools.produce(topic, "sync", 1, prefix=f"end{turn}")
        receives(consumer, f"end{turn}-0")
        producer.finish()
        consumer.finish()
        assert bodies(consumer.named("message")) == sorted([*expected, f"end{turn}-0"])


def kept_filter(folder: Path, topic: str, group: str) -> dict[str, Any]:
    """What consumerFilter.json has of a group."""
    text = (folder / "store" / "config" / "consumerFilter.json").read_text()
    kept: dict[str, Any] = json.loads(text)["filterDataByTopic"][topic]["groupFilterData"][group]
    return kept
