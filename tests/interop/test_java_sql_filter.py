"""RocketMQ's Java consumers with SQL92 expressions, and what the broker refuses."""

from __future__ import annotations

import pytest

from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, receives

pytestmark = pytest.mark.interop

COUNT = 12
# Of message i: its row; an amount; a colour or none; a big number; the texts of truth.
PROPS = (
    "amount:9|10.5|-3|0.25;colour:red|blue||it's;big:9223372036854775807|1;yes:true|false;"
    "w1th_$igns:x|"
)
MATCHES = {
    "row > 5 AND row <= 9": [6, 7, 8, 9],
    "row BETWEEN 2 AND 4 OR row = 11": [2, 3, 4, 11],
    "row NOT BETWEEN 1 AND 10": [0, 11],
    "row >= 10L": [10, 11],
    "row = '3'": [3],
    "amount > 9.5": [1, 5, 9],
    "amount = 9.0": [0, 4, 8],
    "amount = 1.05E1": [1, 5, 9],
    "amount <= -2.5": [2, 6, 10],
    "colour IN ('red', 'blue')": [0, 1, 4, 5, 8, 9],
    "colour NOT IN ('red')": [1, 3, 5, 7, 9, 11],
    "colour IS NULL": [2, 6, 10],
    "colour is not null and row < 4": [0, 1, 3],
    "colour <> 'red'": [1, 3, 5, 7, 9, 11],
    "NOT (colour = 'red')": [1, 3, 5, 7, 9, 11],
    "colour = 'it''s'": [3, 7, 11],
    "TAGS = 'A' AND (row < 4 OR colour = 'blue')": [0, 3, 9],
    "big = 9223372036854775807 AND row < 5": [0, 2, 4],
    "TAGS IS NOT NULL AND UNIQ_KEY IS NOT NULL AND KEYS = 'm-key-7'": [7],
    "nothing = 1 OR row = 8": [8],
    "nothing <> 1 OR row = 8": [8],
    "NOT (nothing = 1) OR row = 8": [8],
    "nothing > 1 AND row = 8": [],
    "colour > 1 OR row = 2": [2],
    "yes = TRUE AND row < 3": [0, 2],
    "yes": [],
    "TRUE AND row = 1": [1],
    "w1th_$igns = 'x' AND row < 5": [0, 2, 4],
    "/* of row */ row = 1 -- one\n": [1],
    "((row = 1))": [1],
}
# A pull with such a text in it gets every message of RocketMQ, and code 23 of ours.
WRONG = [
    "row >",
    "row > 'a'",
    "row BETWEEN 9 AND 5",
    "= 1",
    "a.b = 1",
    "row IN (1)",
    "row = NULL",
    "99999999999999999999 = row",
    "(row = 1",
    "row NOT 1",
]
# RocketMQ takes the longest beginning that is an expression; ours asks for the whole.
CUT = {
    "row = 1 + 1": [1],
    "row = 2 -- no end of the line": [2],
    "colour LIKE 'r%'": [],
    "row = 09": [0],
}


def matches(tools: JavaTools, topic: str, group: str, expressions: list[str]) -> dict[str, object]:
    """By expression the rows that a pull got, or the code of its refusal."""
    found: dict[str, object] = {}
    events = tools.pull(topic, group, sql=expressions)
    for event in (event for event in events if event["event"] == "matched"):
        rows = [int(body.removeprefix("m-")) for body in event.get("bodies", [])]
        found[event["expression"]] = event.get("code", rows)
    return found


def test_expressions(tools: JavaTools, broker: Broker, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", COUNT, tags="A,B,C", props=PROPS)
    assert matches(tools, topic, group, [*MATCHES]) == MATCHES
    found = matches(tools, topic, group, [*WRONG, *CUT])
    if broker.kind == "apache":
        assert found == {text: [*range(COUNT)] for text in WRONG} | CUT
    else:
        assert found == dict.fromkeys([*WRONG, *CUT], 23)


def test_a_push_consumer(tools: JavaTools, topic: str, group: str) -> None:
    """One queue and one thread: what comes before the last message is all there is."""
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", COUNT, tags="A,B,C", prefix="early")
    consumer = tools.consume(
        topic, group, sql="TAGS = 'A' AND row > 3 OR last IS NOT NULL", threads=1
    )
    consumer.count("message", 2)
    tools.produce(topic, "sync", COUNT, tags="B,A,C", prefix="late")
    tools.produce(topic, "sync", 1, prefix="end", props="last:1")
    receives(consumer, "end-0")
    consumer.finish()
    received = [event["body"] for event in consumer.named("message")]
    assert received == ["early-6", "early-9", "late-4", "late-7", "late-10", "end-0"]


def test_a_failed_message_comes_again(tools: JavaTools, topic: str, group: str) -> None:
    consumer = tools.consume(topic, group, sql="row IN ('1', '2')", fail=1, level=1)
    tools.produce(topic, "sync", 4)
    received = consumer.count("message", 4)
    consumer.finish()
    assert bodies(received) == ["m-1", "m-1", "m-2", "m-2"]


def test_a_lite_pull_consumer(tools: JavaTools, topic: str, group: str) -> None:
    tools.produce(topic, "sync", COUNT)
    received = tools.lite_pull(topic, group, 3, sql="row >= 4 AND row < 7")
    assert bodies(received) == ["m-4", "m-5", "m-6"]


def test_another_expression_after_a_restart(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    for prefix, sql, rows in (("a", "row < 2", [0, 1]), ("b", "row > 9", [10, 11])):
        consumer = tools.consume(topic, group, sql=sql)
        tools.produce(topic, "sync", COUNT, prefix=prefix)
        receives(consumer, f"{prefix}-{rows[-1]}")
        consumer.finish()
        received = bodies(consumer.named("message"))
        assert received[-2:] == [f"{prefix}-{row}" for row in rows]


def test_a_wrong_expression_is_refused_at_the_start(
    tools: JavaTools, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    error = tools.consume(topic, group, sql="row BETWEEN 9 AND 5").event("error")
    assert error["code"] == 23


@pytest.mark.parametrize("own_broker", [{"enablePropertyFilter": "false"}], indirect=True)
def test_expressions_have_to_be_switched_on(
    own_broker: Broker, own_tools: JavaTools, topic: str, group: str
) -> None:
    own_tools.queues(topic, create=1)
    own_tools.produce(topic, "sync", 2)
    error = own_tools.consume(topic, group, sql="row = 1").event("error")
    assert error["code"] == 1
    if own_broker.kind == "skylarkmq":
        assert "enablePropertyFilter" in error["message"]
    assert matches(own_tools, topic, group, ["row = 1"]) == {"row = 1": 1}
