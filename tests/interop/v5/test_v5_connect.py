"""Connections of RocketMQ's clients of the gRPC protocol: TLS, accounts, a broker that starts
again, and messages that clients of 4.x have sent or are to receive.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.accounts import ALICE, GROUP, OPEN, READ_ONLY, ROOT, Keys, create_topics
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, numbered
from tests.interop.v5.brokers import ApacheProxy, SkylarkGrpcBroker, make_topic
from tests.interop.v5.conftest import Connect
from tests.interop.v5.programs import LANGUAGES, CallFailedError, Place, Program
from tests.support.certificates import Authority
from tests.support.patience import until_sync

pytestmark = pytest.mark.interop

Grpc = ApacheProxy | SkylarkGrpcBroker
UNAUTHORIZED, FORBIDDEN = 40100, 40300
SLOW_MS = 75_000
"""Longer than the minute that a push consumer's message is invisible at first."""


def test_tls_and_plain_on_one_port(
    own_broker: Grpc, connect: Connect, tmp_path: Path, topic: str, group: str
) -> None:
    """The certificate is checked by those that check."""
    authority = Authority(tmp_path)
    own_broker.certify(authority.certificate_file("127.0.0.1"))
    own_broker.start()
    make_topic(own_broker, topic)
    safe = connect(Place(own_broker.endpoint, tls=True, ca_file=str(authority.ca_file)))
    safe.works(topic, group)
    connect(Place(own_broker.endpoint)).works(topic, f"{group}_plain")


def test_tls_out_of_the_box(own_broker: Grpc, connect: Connect, topic: str, group: str) -> None:
    """A certificate that the broker makes for itself."""
    own_broker.start()
    make_topic(own_broker, topic)
    program = connect(Place(own_broker.endpoint, tls=True))
    if program.language in ("python", "node"):
        with pytest.raises(CallFailedError):
            program.producer(topic).send("m")
    else:
        program.works(topic, group)


def test_accounts(own_broker: Grpc, connect: Connect, children: Children) -> None:
    own_broker.secure()
    own_broker.start()
    create_topics(own_broker, OPEN, READ_ONLY)

    def with_keys(keys: Keys) -> Program:
        return connect(Place(own_broker.endpoint, key=keys[0], secret=keys[1]))

    with_keys(ROOT).works(OPEN, "G_root")
    for keys in ((ROOT[0], "another-secret"), ("nobody-known", ROOT[1]), ("", "")):
        with pytest.raises(CallFailedError) as raised:
            with_keys(keys).producer(OPEN).send("m")
        assert raised.value.code in {0, UNAUTHORIZED}, raised.value
    if isinstance(own_broker, ApacheProxy):
        return  # rights, too, are another feature there
    alice = with_keys(ALICE)
    alice.works(OPEN, GROUP)
    if alice.language == "go":
        return  # it waits for settings, and does not look at the status that comes instead
    with pytest.raises(CallFailedError) as raised:
        alice.simple(OPEN, "G_others").receive()
    assert raised.value.code in {0, FORBIDDEN}
    with pytest.raises(CallFailedError) as raised:
        alice.producer(READ_ONLY).send("m")
    assert raised.value.code in {0, FORBIDDEN}


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_broker_that_starts_again(
    own_broker: Grpc, connect: Connect, language: str, topic: str, group: str, how: str
) -> None:
    """Clients go on; what was not acknowledged comes again, what was does not."""
    if isinstance(own_broker, ApacheProxy) and language == "python":
        pytest.skip("RocketMQ's proxy wants settings, which Python sends every five minutes")
    own_broker.start()
    make_topic(own_broker, topic)
    program = connect(Place(own_broker.endpoint))
    producer = program.producer(topic)
    for body in ("kept", "done"):
        producer.send(body)
    consumer = program.simple(topic, group)
    held = {one["body"]: one for one in consumer.received(2)}
    consumer.ack(held["done"])
    push = program.push(topic, f"{group}_push")
    push.until("kept", "done")
    if how == "stopped":
        own_broker.stop()
    else:
        own_broker.kill()
    own_broker.start()
    producer.send_surely("later")
    push.until("later")
    found: set[str] = set()
    received: list[str] = []

    def all_found() -> bool:
        try:
            messages = consumer.receive()
        except CallFailedError:
            return False
        received.extend(one["body"] for one in messages)
        for message in messages:
            consumer.ack(message)
        found.update(received)
        return found >= {"kept", "later"}

    until_sync(all_found, "what is left")
    if how == "stopped" or not isinstance(own_broker, ApacheProxy):
        assert "done" not in found


def test_from_4_to_5(
    tools: JavaTools, program: Program, broker: Broker, topic: str, group: str
) -> None:
    """What a Java client of 4.x sends, small and compressed, is received by one of 5.x."""
    make_topic(broker, topic)
    small = tools.produce(topic, "sync", 3, tags="A,B,C")
    large = 1
    if isinstance(broker, ApacheProxy) and program.language == "node":
        large = 0  # RocketMQ's proxy calls zlib's form GZIP, and Node's client believes it
    tools.produce(topic, "sync", large, prefix="large", size=10_000)
    consumer = program.push(topic, group)
    found = {one["body"][:7]: one for one in consumer.count(3 + large)}
    assert sorted(found) == sorted([*numbered("m", 3), *numbered("large", large)])
    assert all(len(one["body"]) == 10_000 for name, one in found.items() if name != name[:3])
    first = found["m-0"]
    assert (first["message_id"], first["tag"]) == (small[0]["msg_id"], "A")
    assert first["keys"] == ["m-key-0"]
    assert first["properties"]["stadt"] == "Zürich"


def test_from_5_to_4(
    tools: JavaTools, program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic)
    producer = program.producer(topic)
    sent = [
        producer.send(body, tag="B", key="k", properties={"stadt": "Zürich"})
        for body in numbered("m", 3)
    ]
    found = sorted(tools.received(topic, group, 3), key=lambda one: str(one["body"]))
    assert [one["body"] for one in found] == numbered("m", 3)
    assert [one["msg_id"] for one in found] == [one["message_id"] for one in sent]
    assert {(one["tags"], one["keys"].strip()) for one in found} == {("B", "k")}
    assert {one["properties"]["stadt"] for one in found} == {"Zürich"}


def test_a_slow_listener_keeps_its_message(
    broker: Grpc, children: Children, topic: str, group: str
) -> None:
    """The broker renews what a listener works on for long, in all languages at a time."""
    if isinstance(broker, ApacheProxy):
        pytest.skip("RocketMQ 5.3.3 starts no renewal: the message comes twice")
    make_topic(broker, topic)
    place = Place(broker.endpoint)
    programs = [Program(children, language, place) for language in LANGUAGES]
    consumers = [
        program.push(topic, f"{group}_{program.language}", slow_ms=SLOW_MS) for program in programs
    ]
    programs[0].producer(topic).send("slow")
    for consumer in consumers:
        consumer.until("slow")
    for consumer in consumers:
        consumer.finished(1)
        assert [one["attempt"] for one in consumer.messages] == [1]
