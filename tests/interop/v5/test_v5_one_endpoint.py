"""Clients of RocketMQ's gRPC protocol that know one endpoint of two brokers: what they do with
messages of the other one is what they do with those of its own.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.interop import java
from tests.interop.children import Children, Event
from tests.interop.v5.conftest import KIND
from tests.interop.v5.pairs import ApachePair, Pair, SkylarkPair
from tests.interop.v5.programs import (
    LANGUAGES,
    CallFailedError,
    Place,
    Program,
    SimpleConsumer,
)
from tests.support.patience import until_sync

pytestmark = pytest.mark.interop

PAIRS: dict[str, type[ApachePair] | type[SkylarkPair]] = {
    pair.kind: pair for pair in (SkylarkPair, ApachePair)
}
BODIES = [f"m-{number}" for number in range(8)]
"""Of which each broker gets some."""
LONG_MS = 3_600_000
"""Nothing comes again in a test that does not say so."""
RECALLED_MS = 6000
SLOW_MS = 75_000
"""Longer than the minute that a push consumer's message is invisible at first."""
LARGE = 4_000_000
"""Node and Go receive gRPC's default of 4 MiB, with all fields."""


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The brokers under test, shared: each test leaves both running."""
    if KIND not in PAIRS:
        pytest.skip(f"{KIND} has no endpoint of the gRPC protocol")
    if ApachePair.kind == KIND and (why := java.missing()):
        pytest.skip(why)
    found = PAIRS[KIND](tmp_path_factory.mktemp("pair"))
    try:
        found.start()
        yield found
    finally:
        found.end()


@pytest.fixture(scope="session")
def endpoint(pair: Pair) -> str:
    """Where the clients of `program` connect to: not to the broker of other modules."""
    return pair.endpoint


def bodies(messages: list[Event]) -> list[str]:
    return sorted(one["body"] for one in messages)


def test_messages_of_both_brokers_come_once(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    pair.make_topic(topic)
    producer = program.producer(topic)
    sent = {body: producer.send(body, tag="A", key="k")["message_id"] for body in BODIES}
    assert min(pair.counts(topic)) > 0
    assert sum(pair.counts(topic)) == len(BODIES)
    push = program.push(topic, f"{group}_push")
    simple = program.simple(topic, f"{group}_simple")
    found = simple.received(len(BODIES), LONG_MS)
    for message in found:
        simple.ack(message)
    push.until(*BODIES)
    for name in ("push", "simple"):
        until_sync(lambda name=name: pair.is_read(topic, f"{group}_{name}"), f"{name}'s offsets")
    for messages in (found, push.messages):
        assert {one["body"]: one["message_id"] for one in messages} == sent
        assert {(one["attempt"], one["tag"], *one["keys"]) for one in messages} == {(1, "A", "k")}
        assert bodies(messages) == sorted(BODIES)


def test_filters_at_both_brokers(program: Program, pair: Pair, topic: str, group: str) -> None:
    pair.make_topic(topic)
    producer = program.producer(topic)
    for number in range(12):
        # Two of a tag in a row, as brokers take turns.
        tag = "ABC"[number // 2 % 3]
        producer.send(f"{tag}-{number}", tag=tag, properties={"price": str(number)})
    tagged = program.simple(topic, f"{group}_tag", tag="A || C").received(8, LONG_MS)
    assert Counter(one["tag"] for one in tagged) == {"A": 4, "C": 4}
    priced = program.simple(topic, f"{group}_sql", sql="price > 5").received(6, LONG_MS)
    assert sorted(int(one["properties"]["price"]) for one in priced) == list(range(6, 12))


def test_large_bodies_of_both_brokers(program: Program, pair: Pair, topic: str, group: str) -> None:
    pair.make_topic(topic)
    producer = program.producer(topic)
    sent = [(name * LARGE)[:LARGE] for name in "abcd"]
    for body in sent:
        producer.send(body)
    assert min(pair.counts(topic)) > 0
    consumer = program.simple(topic, group)
    found: list[str] = []

    def all_found() -> bool:
        for message in consumer.receive(1, LONG_MS):
            consumer.ack(message)
            found.append(message["body"])
        return len(found) >= len(sent)

    until_sync(all_found, "all large bodies")
    assert sorted(found) == sent


def test_messages_of_a_group_keep_their_order(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    """A message group has one queue of one broker; several groups use both."""
    pair.make_topic(topic, "FIFO")
    pair.make_group(group, orderly=True)
    names = [f"group-{number}" for number in range(8)]
    sent = [f"{name}-{number}" for number in range(4) for name in names]
    producer = program.producer(topic)
    homes: dict[str, set[int]] = {name: set() for name in names}
    for body in sent:
        name = body.rpartition("-")[0]
        before = pair.counts(topic)
        producer.send(body, message_group=name)
        grown = [new - old for old, new in zip(before, pair.counts(topic), strict=True)]
        homes[name].add(grown.index(1))
    assert set(map(len, homes.values())) == {1}
    assert set().union(*homes.values()) == {0, 1}
    push = program.push(topic, group)
    push.until(*sent)
    until_sync(lambda: pair.is_read(topic, group), "the group's offsets")
    assert bodies(push.messages) == sorted(sent)
    for name in names:
        of_group = [one["body"] for one in push.messages if one["message_group"] == name]
        assert of_group == [f"{name}-{number}" for number in range(4)]


def test_delayed_and_recalled_at_both_brokers(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    pair.make_topic(topic, "DELAY")
    consumer = program.push(topic, group)
    producer = program.producer(topic)
    if program.language != "go":  # which does not recall
        taken = [producer.send(f"recalled-{body}", delay_ms=RECALLED_MS) for body in BODIES]
        names = {base64.urlsafe_b64decode(one["recall_handle"]).split()[2] for one in taken}
        assert names == {broker.name.encode() for broker in pair.brokers}
        for one in taken:
            assert producer.recall(one["recall_handle"])["message_id"] == one["message_id"]
    for body in BODIES:
        producer.send(body, delay_ms=RECALLED_MS + 3000)
    found = consumer.until(*BODIES)
    assert bodies(found) == sorted(BODIES)
    assert min(pair.counts(topic)) > 0
    # A second less: RocketMQ delivers up to that much early.
    assert all(one["now_ms"] - one["born_ms"] >= RECALLED_MS + 2000 for one in found)


def test_transactions_at_both_brokers(program: Program, pair: Pair, topic: str, group: str) -> None:
    """Committed, rolled back, and left open: then each broker asks."""
    pair.make_topic(topic, "TRANSACTION")
    consumer = program.push(topic, group)
    producer = program.producer(topic, check="commit")
    for body in BODIES:
        producer.send(f"rolled back {body}", transaction="rollback")
    committed = [f"committed {body}" for body in BODIES]
    for body in committed:
        producer.send(body, transaction="commit")
    asked = {f"asked {body}": "" for body in BODIES}
    for body in asked:
        asked[body] = producer.send(body, transaction="none")["message_id"]
    found = consumer.until(*committed, *asked)
    assert bodies(found) == sorted([*committed, *asked])
    assert min(pair.counts(topic)) > 0
    checks = {one["body"]: one["message_id"] for one in producer.checks(len(asked))}
    assert {body: checks.get(body) for body in asked} == asked


def test_another_producer_is_asked_by_both_brokers(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    """The one that sent the messages is gone."""
    pair.make_topic(topic, "TRANSACTION")
    consumer = program.push(topic, group)
    gone = program.producer(topic, check="unknown")
    for body in BODIES:
        gone.send(body, transaction="none")
    gone.close()
    other = program.producer(topic, check="commit")
    assert bodies(consumer.until(*BODIES)) == sorted(BODIES)
    assert {one["body"] for one in other.checks(len(BODIES))} == set(BODIES)
    assert min(pair.counts(topic)) > 0


def test_a_changed_invisible_time_at_both_brokers(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    """It ends sooner or later than was asked for at first."""
    pair.make_topic(topic)
    pair.make_group(group)
    producer = program.producer(topic)
    for body in BODIES:
        producer.send(body)
    assert min(pair.counts(topic)) > 0
    consumer = program.simple(topic, group)
    first = consumer.received(len(BODIES), LONG_MS)
    assert bodies(first) == sorted(BODIES)
    for message in first:
        consumer.change(message, 1000)
    again = consumer.received(len(BODIES))
    assert {(one["body"], one["attempt"]) for one in again} == {(body, 2) for body in BODIES}
    for message in again:
        consumer.ack(message)
    until_sync(lambda: pair.is_read(topic, group), "the group's offsets")


def test_dead_letters_of_both_brokers(program: Program, pair: Pair, topic: str, group: str) -> None:
    pair.make_topic(topic)
    pair.make_group(group, max_retries=1)
    consumer = program.push(topic, group, fail=99)
    producer = program.producer(topic)
    for body in BODIES:
        producer.send(body)
    homes = pair.counts(topic)
    assert min(homes) > 0
    until_sync(lambda: pair.dead_letters(group) == homes, "the dead letters")
    found = Counter((one["body"], one["attempt"]) for one in consumer.messages)
    assert found == dict.fromkeys([(body, n) for body in BODIES for n in (1, 2)], 1)


def test_dead_letters_of_an_orderly_group_of_both_brokers(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    """The client forwards them itself."""
    pair.make_topic(topic, "FIFO")
    pair.make_group(group, orderly=True, max_retries=1)
    producer = program.producer(topic)
    for body in BODIES:
        producer.send(body, message_group=f"group-{body}")
    homes = pair.counts(topic)
    assert min(homes) > 0
    program.push(topic, group, fail=99)
    until_sync(lambda: pair.dead_letters(group) == homes, "the dead letters")


def test_the_other_broker_is_killed_and_starts_again(
    program: Program, pair: Pair, topic: str, group: str
) -> None:
    """Clients go on; what it had comes afterwards, what was acknowledged does not."""
    pair.make_topic(topic)
    producer = program.producer(topic)
    held_bodies, done_bodies = ([f"{name}-{body}" for body in BODIES] for name in ("held", "done"))
    for body in (*held_bodies, *done_bodies):
        producer.send(body)
    assert min(pair.counts(topic)) > 0
    simple = program.simple(topic, group)
    push = program.push(topic, f"{group}_push")
    for message in simple.received(2 * len(BODIES), LONG_MS):
        if message["body"] in done_bodies:
            simple.ack(message)
    push.until(*held_bodies, *done_bodies)
    pair.far.kill()
    meanwhile = [f"meanwhile-{body}" for body in BODIES]
    for body in meanwhile:
        producer.send_surely(body)
    push.until(*meanwhile)
    pair.far.start()
    pair.routed(topic)
    before = pair.counts(topic)
    later: list[str] = []

    def both_have_some() -> bool:
        later.append(f"later-{len(later)}")
        producer.send_surely(later[-1])
        return all(new > old for new, old in zip(pair.counts(topic), before, strict=True))

    until_sync(both_have_some, "messages for both brokers")
    push.until(*later)
    received = until_all_found(simple, {*meanwhile, *later})
    if isinstance(pair, SkylarkPair):
        assert not received & set(done_bodies)


def until_all_found(consumer: SimpleConsumer, wanted: set[str]) -> set[str]:
    """Receive and acknowledge until all of these have come, and return what has."""
    found: set[str] = set()

    def all_found() -> bool:
        try:
            for message in consumer.receive(invisible_ms=LONG_MS):
                found.add(message["body"])
                consumer.ack(message)
        except CallFailedError:
            return False
        return found >= wanted

    until_sync(all_found, f"{len(wanted)} messages")
    return found


def test_slow_listeners_keep_messages_of_both_brokers(
    pair: Pair, children: Children, topic: str, group: str
) -> None:
    """Each broker renews what a listener works on for long, in all languages at a time."""
    if isinstance(pair, ApachePair):
        pytest.skip("RocketMQ 5.3.3 starts no renewal: the messages come twice")
    pair.make_topic(topic)
    place = Place(pair.endpoint)
    programs = [Program(children, language, place) for language in LANGUAGES]
    consumers = [
        program.push(topic, f"{group}_{program.language}", slow_ms=SLOW_MS) for program in programs
    ]
    producer = programs[0].producer(topic)
    sent = ["slow-1", "slow-2"]
    for body in sent:
        producer.send(body)
    assert pair.counts(topic) == [1, 1]
    for consumer in consumers:
        consumer.until(*sent)
        consumer.finished(len(sent))
        assert sorted((one["body"], one["attempt"]) for one in consumer.messages) == [
            (body, 1) for body in sent
        ]
