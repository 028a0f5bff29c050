"""Requests over the wire with access control: who may do what, in every form; attempts to get by.

Each attempt is refused before anything of the store is touched.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from skylarkmq.broker.access.control import AccessControl, AccessDenied
from skylarkmq.broker.access.rights import BROKER, NAME_SERVER
from skylarkmq.broker.base.logs import LINES_MAX, RateLimit
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.net.connection import Connection
from skylarkmq.protocol.batch import encode_batch
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RESPONSE_FLAG, RemotingCommand, encode_command
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.signature import sign_request
from tests.support.heartbeats import consumer_data, heartbeat, subscription
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, SEND_V1, BATCH, PULL = 310, 10, 320, 11
DENIED = "org.apache.rocketmq.acl.common.AclException: "
SECRET = "secret-of-all"
ACCOUNTS = f"""
accounts:
- accessKey: publisher
  secretKey: {SECRET}
  topicPerms: [Mine=PUB, Both=PUB|SUB]
- accessKey: subscriber
  secretKey: {SECRET}
  topicPerms: [Mine=SUB, Both=SUB]
  groupPerms: [readers=SUB]
- accessKey: neighbour
  secretKey: {SECRET}
  topicPerms: [Mine=SUB]
  groupPerms: [a_b_c=SUB, readers=SUB]
- accessKey: administrator
  secretKey: {SECRET}
  admin: true
- accessKey: exporter
  secretKey: {SECRET}
  defaultTopicPerm: SUB
  defaultGroupPerm: SUB
- accessKey: at-home
  secretKey: {SECRET}
  whiteRemoteAddress: 127.0.0.1
  topicPerms: [Mine=PUB]
"""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    home = tmp_path / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(ACCOUNTS)
    changes = {"acl_enable": True, "rocketmq_home": home}
    async with live_broker(tmp_path / "store", **changes) as controller:
        yield controller


def signed(
    fields: Mapping[str, str],
    body: bytes = b"",
    key: str = "administrator",
    secret: str = SECRET,
    serialize_type: int = SerializeType.JSON,
) -> dict[str, str]:
    """The fields of a request with key and signature."""
    command = RemotingCommand.request(0, fields, body, serialize_type=serialize_type)
    sign_request(command, key, secret.encode())
    return command.ext_fields


def topics(broker: BrokerController) -> set[str]:
    return {topic for topic, _ in broker.parts.store.queues.queues}


@pytest.mark.parametrize("kind", list(SerializeType))
@pytest.mark.parametrize(
    ("key", "topic", "why"),
    [
        ("publisher", "Mine", None),
        ("publisher", "Other", "No default permission for topic:Other"),
        ("subscriber", "Mine", "No default permission for topic:Mine"),
        ("administrator", "Other", None),
        ("nobody-here", "Mine", "No acl config for nobody-here"),
    ],
)
async def test_a_send_needs_the_right_to_publish(
    broker: BrokerController, client: RawClient, kind: int, key: str, topic: str, why: str | None
) -> None:
    plain = send_fields(topic)
    answer = await client.call(
        SEND, signed(plain, b"body", key, serialize_type=kind), b"body", serialize_type=kind
    )
    if why is None:
        assert answer.code == 0, answer.remark
        assert topic in topics(broker)
    else:
        assert answer.code == 1
        assert (answer.remark or "").startswith(DENIED + why + ", ")
        assert topic not in topics(broker)


async def test_a_send_after_many_of_a_white_list_is_checked_too(
    broker: BrokerController, client: RawClient
) -> None:
    """The fast paths take plain sends of known form; none may pass them unsigned."""
    good = signed(send_fields("Mine"), b"body", "publisher")
    assert (await client.call(SEND, good, b"body")).code == 0
    opaques = [client.send(SEND, send_fields("Mine"), b"body") for _ in range(20)]
    answers = [await client.answer(opaque) for opaque in opaques]
    assert {answer.code for answer in answers} == {1}
    assert all(DENIED + "No accessKey is configured" in (a.remark or "") for a in answers)
    opaques = [client.send(PULL, pull_fields("Mine", 0)) for _ in range(20)]
    assert {(await client.answer(opaque)).code for opaque in opaques} == {1}


@pytest.mark.parametrize("kind", list(SerializeType))
async def test_signed_sends_and_pulls_take_the_plain_roads_each_with_its_own_verdict(
    broker: BrokerController, client: RawClient, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = broker.router
    assert router is not None and router._send is not None
    key, topic, count, bad = "administrator", "Plain", 20, 7
    first = signed(send_fields(topic), b"first", key, serialize_type=kind)
    assert (await client.call(SEND, first, b"first", serialize_type=kind)).code == 0
    on_slow_path: list[RemotingCommand] = []
    monkeypatch.setattr(router._send, "request", lambda _, request: on_slow_path.append(request))
    opaques = []
    for number in range(count):
        body = b"%d" % number
        fields = signed(send_fields(topic), body, key, serialize_type=kind)
        sent = b"another body" if number == bad else body
        opaques.append(client.send(SEND, fields, sent, serialize_type=kind))
    answers = [await client.answer(opaque) for opaque in opaques]
    codes = [answer.code for answer in answers]
    assert codes == [int(number == bad) for number in range(count)]
    assert "Check signature failed" in (answers[bad].remark or "")
    assert on_slow_path == []
    fields = signed(pull_fields(topic, 0), b"", key, serialize_type=kind)
    pulled = await client.call(PULL, fields, serialize_type=kind)
    stored = [message.body for message in decode_messages(pulled.body)]
    assert stored == [b"first", *(b"%d" % number for number in range(count) if number != bad)]
    again = await client.call(PULL, fields, serialize_type=kind)
    assert (again.code, again.body) == (0, pulled.body)


async def test_a_topic_of_retries_needs_the_right_to_what_pop_has_there(
    broker: BrokerController, client: RawClient
) -> None:
    """`%RETRY%a_b_c` is that of the group a_b_c, and that of a where it pops of b_c."""
    name = "%RETRY%a_b_c"
    for topic, properties in (
        ("b_c", ""),
        (name, "RETRY_TOPIC\x01b_c"),
        (name, "RETRY_TOPIC\x01Mine"),
    ):
        fields = signed({**send_fields(topic), "i": properties}, b"body")
        assert (await client.call(SEND, fields, b"body")).code == 0
    log = broker.parts.store

    async def remarks() -> list[str]:
        (foreign, own) = (unit.commit_offset for unit in log.queue_units(name, 0, 0, 2))
        asked = [
            (PULL, {**pull_fields(name, 0), "consumerGroup": "a_b_c"}),
            (SEND, {**send_fields(name), "i": "RETRY_TOPIC\x01b_c"}),
            *((33, {"offset": str(offset)}) for offset in (foreign, own)),
            *((36, {"offset": str(offset), "group": "readers", "delayLevel": "0"})
              for offset in (foreign, own)),
        ]  # fmt: skip
        answers = [
            await client.call(code, signed(fields, key="neighbour")) for code, fields in asked
        ]
        return [answer.remark or "" if answer.code else "" for answer in answers]

    denied = DENIED + "No default permission for topic:b_c, "
    assert [each.startswith(denied) for each in await remarks()] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    registry = broker.parts.pop.registry
    registry.extend(registry.make("a", "b_c"))
    assert [each.startswith(denied) for each in await remarks()] == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]


async def test_what_the_plain_roads_are_not_shown_counts_as_traffic(
    broker: BrokerController, client: RawClient
) -> None:
    def received() -> int:
        return broker.parts.stats.frames_in[SerializeType.JSON].bytes

    fields = signed(send_fields("Mine"), b"body", "publisher")
    assert (await client.call(SEND, fields, b"body")).code == 0
    before = received()
    command = RemotingCommand.request(SEND, fields, b"body", opaque=2)
    assert (await client.call(SEND, fields, b"body")).code == 0
    assert received() - before == len(encode_command(command))


async def test_batches_and_old_sends_are_checked_like_others(
    broker: BrokerController, client: RawClient
) -> None:
    batch = encode_batch([Message("Other", b"1"), Message("Other", b"2")])
    fields = {**send_fields("Other"), "m": "true"}
    answer = await client.call(BATCH, signed(fields, batch, "publisher"), batch)
    assert "No default permission for topic:Other" in (answer.remark or "")
    answer = await client.call(BATCH, signed({**fields, "b": "Mine"}, batch, "publisher"), batch)
    assert answer.code == 0, answer.remark
    assert topics(broker) == {"Mine"}


async def test_one_way_requests_without_a_right_are_dropped_and_counted(
    broker: BrokerController, client: RawClient
) -> None:
    client.send(SEND, send_fields("Mine"), b"body", oneway=True)
    client.send(SEND, signed(send_fields("Other"), b"body", "publisher"), b"body", oneway=True)
    assert (await client.call(SEND, signed(send_fields("Mine"), b"", "publisher"))).code == 0
    failures = broker.parts.stats.auth_failures
    assert (failures["no_access_key"], failures["no_permission"]) == (1, 1)
    assert topics(broker) == {"Mine"}


def swapped_case(signature: str) -> str:
    return signature.swapcase()


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("no key", {"AccessKey": None}),
        ("no signature", {"Signature": None}),
        ("empty signature", {"Signature": ""}),
        ("other case", {"Signature": "swap"}),
        ("cut signature", {"Signature": "cut"}),
        ("longer signature", {"Signature": "longer"}),
        ("no ASCII", {"Signature": "\u00e4\u4e2d"}),
        ("another topic", {"b": "Both"}),
        ("an added field", {"zzz": "1"}),
        ("a removed field", {"l": None}),
        ("another key", {"AccessKey": "administrator"}),
        ("key with a blank", {"AccessKey": "publisher "}),
        ("key of another case", {"AccessKey": "PUBLISHER"}),
        ("fields exchanged", {"a": "Mine", "b": "pg"}),
    ],
)
@pytest.mark.parametrize("kind", list(SerializeType))
async def test_a_changed_request_is_refused(
    broker: BrokerController,
    client: RawClient,
    kind: int,
    what: str,
    change: dict[str, str | None],
) -> None:
    plain = {**send_fields("Mine"), "l": "3"}
    fields = signed(plain, b"body", "publisher", serialize_type=kind)
    signature = fields["Signature"]
    forged = {
        "swap": signature.swapcase(), "cut": signature[:-1], "longer": signature + "=",
    }  # fmt: skip
    for name, text in change.items():
        fields.pop(name, None)
        if text is not None:
            fields[name] = forged.get(text, text)
    answer = await client.call(SEND, fields, b"body", serialize_type=kind)
    assert answer.code == 1, what
    assert DENIED in (answer.remark or "")
    assert not topics(broker)
    assert SECRET not in (answer.remark or "")


async def test_an_empty_key_is_none(client: RawClient) -> None:
    """As C++ clients send it."""
    answer = await client.call(SEND, {**send_fields("Mine"), "AccessKey": "", "Signature": ""})
    assert (answer.remark or "").startswith(DENIED + "No accessKey is configured, ")


async def test_the_secret_of_no_account_signs(client: RawClient) -> None:
    for secret in ("", " ", SECRET[:-1], SECRET + "!", SECRET.upper()):
        answer = await client.call(SEND, signed(send_fields("Mine"), b"", "publisher", secret))
        assert answer.code == 1
        assert "Check signature failed for accessKey=publisher" in (answer.remark or "")


async def test_old_names_in_a_new_code_are_no_way_around(
    broker: BrokerController, client: RawClient
) -> None:
    both = {**send_fields("Other"), "topic": "Mine", "producerGroup": "pg"}
    for code in (SEND, BATCH):
        answer = await client.call(code, signed(both, b"x", "publisher"), b"x")
        assert "No default permission for topic:Other" in (answer.remark or "")
    assert not topics(broker)


async def test_a_retry_topic_is_its_group_to_be_read(
    broker: BrokerController, client: RawClient
) -> None:
    answer = await client.call(SEND, signed(send_fields("%RETRY%readers"), b"", "publisher"))
    assert "No default permission for group:readers" in (answer.remark or "")
    answer = await client.call(SEND, signed(send_fields("%RETRY%others"), b"", "subscriber"))
    assert "No default permission for group:others" in (answer.remark or "")
    answer = await client.call(SEND, signed(send_fields("%RETRY%readers"), b"", "subscriber"))
    assert answer.code == 0, answer.remark
    pull = {**pull_fields("%RETRY%others", 0), "consumerGroup": "readers"}
    answer = await client.call(PULL, signed(pull, b"", "subscriber"))
    assert "No default permission for group:others" in (answer.remark or "")


async def test_the_duplicate_of_a_field_in_json_is_signed_as_it_counts(
    broker: BrokerController,
) -> None:
    """Two fields of one name: what is checked is what is handled."""
    fields = signed(send_fields("Mine"), b"", "publisher")
    text = json.dumps({"code": SEND, "extFields": fields, "flag": 0, "language": "JAVA",
                       "opaque": 7, "version": 409})  # fmt: skip
    for forged in (
        text.replace('"b": "Mine"', '"b": "Other", "b": "Mine"'),
        text.replace('"b": "Mine"', '"b": "Mine", "b": "Other"'),
    ):
        assert forged != text
        peer = await RawClient.open(broker.listen_address)
        header = forged.encode()
        peer.writer.write(
            (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        )
        answer = await peer.answer(7)
        assert answer.code == 0 or DENIED in (answer.remark or "")
        await peer.close()
    assert "Other" not in topics(broker)


async def test_an_account_at_its_address_needs_no_signature_and_has_its_rights_alone(
    broker: BrokerController, client: RawClient
) -> None:
    answer = await client.call(SEND, {**send_fields("Mine"), "AccessKey": "at-home"}, b"x")
    assert answer.code == 0, answer.remark
    answer = await client.call(SEND, {**send_fields("Other"), "AccessKey": "at-home"}, b"x")
    assert "No default permission for topic:Other" in (answer.remark or "")
    answer = await client.call(RequestCode.GET_BROKER_CONFIG, {"AccessKey": "at-home"})
    assert "Need admin permission for request code=26, but accessKey=at-home is not" in (
        answer.remark or ""
    )


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (17, {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
              "perm": "6", "topicFilterType": "SINGLE_TAG"}),
        (25, {}), (26, {}), (50, {"accessKey": "publisher"}), (51, {"accessKey": "publisher"}),
        (52, {}), (53, {"globalWhiteAddrs": "*"}), (54, {}), (200, {}),
        (207, {"groupName": "readers"}), (215, {"topic": "Mine"}),
        (222, {"topic": "Mine", "group": "readers", "timestamp": "0"}),
        (307, {"consumerGroup": "readers", "clientId": "c"}),
        (309, {"consumerGroup": "readers"}), (314, {"srcGroup": "readers", "destGroup": "x"}),
        (323, {"msgId": "0" * 32}), (329, {}),
    ],
)  # fmt: skip
async def test_what_is_of_administrators_is_refused_to_others(
    client: RawClient, code: int, fields: dict[str, str]
) -> None:
    for key in ("subscriber", "exporter"):
        answer = await client.call(code, signed(fields, b"", key))
        assert answer.code == 1
        assert f"Need admin permission for request code={code}" in (answer.remark or "")


async def test_who_may_read_everything_sees_the_whole_broker(client: RawClient) -> None:
    for code in (21, 28, 43, 45, 201, 328):
        assert (await client.call(code, signed({}, b"", "exporter"))).code == 0
        answer = await client.call(code, signed({}, b"", "subscriber"))
        assert "read everything" in (answer.remark or "")


async def test_a_message_is_not_read_by_its_number_without_the_right_to_its_topic(
    broker: BrokerController, client: RawClient
) -> None:
    sent = await client.call(SEND, signed(send_fields("Secret"), b"body"), b"body")
    offset = {"offset": "0"}
    assert sent.code == 0
    view = int(RequestCode.VIEW_MESSAGE_BY_ID)
    assert b"body" in (await client.call(view, signed(offset))).body
    answer = await client.call(view, signed(offset, b"", "subscriber"))
    assert "No default permission for topic:Secret" in (answer.remark or "")
    assert not answer.body
    back = {"offset": "0", "group": "readers", "delayLevel": "0", "originTopic": "Mine"}
    answer = await client.call(36, signed(back, b"", "subscriber"))
    assert "No default permission for topic:Secret" in (answer.remark or "")
    assert topics(broker) == {"Secret"}


async def test_a_heartbeat_needs_every_group_and_topic(
    broker: BrokerController, client: RawClient
) -> None:
    def body(group: str, topic: str) -> bytes:
        return heartbeat("c", consumer_data(group, subscription(topic)))

    for group, topic, lacking in (("readers", "Other", "topic:Other"), ("x", "Mine", "group:x")):
        data = body(group, topic)
        answer = await client.call(34, signed({}, data, "subscriber"), data)
        assert f"No default permission for {lacking}" in (answer.remark or "")
    data = body("readers", "Mine")
    assert (await client.call(34, signed({}, data, "subscriber"), data)).code == 0


async def test_a_code_that_nobody_knows_is_answered_to_those_with_an_account(
    client: RawClient,
) -> None:
    assert DENIED in ((await client.call(4711)).remark or "")
    assert (await client.call(4711, signed({}, b"", "publisher"))).code == 3


async def test_the_name_server_asks_too(broker: BrokerController) -> None:
    assert broker.namesrv_address is not None
    peer = await RawClient.open(broker.namesrv_address)
    route = {"topic": "TBW102"}
    assert DENIED + "No accessKey" in ((await peer.call(105, route)).remark or "")
    assert (await peer.call(105, signed(route, b"", "publisher"))).code == 0
    assert (await peer.call(106, signed({}, b"", "publisher"))).code == 0
    kv = {"namespace": "n", "key": "k", "value": "v"}
    for code, fields in ((100, kv), (103, {}), (104, {}), (322, {}), (205, {"brokerName": "b"})):
        answer = await peer.call(code, signed(fields, b"", "publisher"))
        assert "Need admin permission" in (answer.remark or ""), code
    assert (await peer.call(100, signed(kv))).code == 0
    await peer.close()


async def test_a_signed_request_counts_on_another_connection_too(
    broker: BrokerController, client: RawClient
) -> None:
    """The scheme knows no time and no number: TLS alone helps, and the documentation says so."""
    fields = signed(send_fields("Mine"), b"x", "publisher")
    assert (await client.call(SEND, fields, b"x")).code == 0
    other = await RawClient.open(broker.listen_address)
    assert (await other.call(SEND, fields, b"x")).code == 0
    await other.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", list(SerializeType))
async def test_no_code_does_anything_for_a_peer_without_an_account(
    broker: BrokerController, client: RawClient, kind: int
) -> None:
    """Every code of both servers, with the fields that handlers want, and none of them signed."""
    fields = {
        **send_fields("Mine"), **pull_fields("Mine", 0), "group": "readers", "key": "k",
        "groupName": "readers", "brokerName": "broker-a", "namespace": "n", "value": "v",
        "accessKey": "publisher", "globalWhiteAddrs": "*", "clientID": "c", "offset": "0",
    }  # fmt: skip
    assert broker.namesrv_address is not None
    name_server = await RawClient.open(broker.namesrv_address)
    before = broker.parts.store.commit_log.max_offset, dict(broker.parts.topics.table)
    for peer, rows in ((client, BROKER), (name_server, NAME_SERVER)):
        for code in rows:
            if kind == SerializeType.ROCKETMQ and code >= 1 << 15:
                continue  # its codes have two bytes
            for body in (b"", b"{}"):
                answer = await peer.call(code, fields, body, serialize_type=kind)
                assert (answer.code, answer.body) == (1, b""), code
                assert (answer.remark or "").startswith(DENIED + "No accessKey is configured")
            peer.send(code, fields, b"{}", oneway=True, serialize_type=kind)
        assert (await peer.call(4711, fields)).code == 1
    await name_server.close()
    assert (broker.parts.store.commit_log.max_offset, dict(broker.parts.topics.table)) == before


class Peer:
    """A connection, as far as a check looks at it."""

    remote_address = "192.0.2.1:1"
    admitted = (None, False)


def test_strangers_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever they ask, it is one kind of line, of which a second has LINES_MAX."""
    stats, peer = BrokerStats(), cast("Connection", Peer())
    control = AccessControl(BROKER, stats)
    with caplog.at_level("INFO"):
        for code, key in ((SEND, {}), (SEND, {"AccessKey": "nobody"}), (17, {"AccessKey": "no"})):
            with pytest.raises(AccessDenied):
                control.check(peer, RemotingCommand.request(code, send_fields("Mine") | key))
    assert len({(each.name, each.msg) for each in caplog.records}) == 1
    assert caplog.messages[0].startswith("192.0.2.1:1, code 310, is refused: ")
    limit = RateLimit()
    caplog.records[0].created = 7.5
    assert [limit.filter(caplog.records[0]) for _ in range(107)].count(True) == LINES_MAX
    assert stats.rejections["other", "acl"] == 3


@pytest.mark.parametrize("kind", list(SerializeType))
async def test_what_calls_itself_an_answer_is_no_way_to_store_or_read(
    broker: BrokerController, client: RawClient, kind: int
) -> None:
    """Answers are not signed, so a send or a pull with the bit of an answer must not be handled."""
    good = signed(send_fields("Mine"), b"body", serialize_type=kind)
    for _ in range(3):  # now the queue is known to the fast paths
        assert (await client.call(SEND, good, b"body", serialize_type=kind)).code == 0
    end, pulled = broker.parts.store.commit_log.max_offset, broker.parts.stats.pull_results
    before = dict(pulled)
    for code, fields in ((SEND, send_fields("Mine")), (PULL, pull_fields("Mine", 0))):
        command = RemotingCommand.request(code, fields, b"body", serialize_type=kind)
        command.flag |= RESPONSE_FLAG
        client.writer.write(encode_command(command))
    last = signed(send_fields("Mine"), b"body", "publisher", serialize_type=kind)
    answer = await client.call(SEND, last, b"body", serialize_type=kind)
    assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "3")
    assert broker.parts.store.commit_log.max_offset - end == end // 3
    assert dict(pulled) == before


async def test_a_peer_of_the_white_list_does_everything_until_it_is_taken_off(
    tmp_path: Path,
) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(f"globalWhiteRemoteAddresses: [127.0.0.*]{ACCOUNTS}")
    changes = {"acl_enable": True, "rocketmq_home": conf.parent}
    async with live_broker(tmp_path / "store", **changes) as controller:
        client = await RawClient.open(controller.listen_address)
        for _ in range(3):
            assert (await client.call(SEND, send_fields("Any"), b"x")).code == 0
        assert (await client.call(PULL, pull_fields("Any", 0))).code == 0
        assert (await client.call(26)).code == 0
        wrong = signed(send_fields("Any"), b"x", "nobody-here")
        assert (await client.call(SEND, wrong, b"x")).code == 0
        assert (await client.call(53, {"globalWhiteAddrs": "10.0.0.1"})).code == 0
        await client.close()  # the broker has ended the connection, too
        client = await RawClient.open(controller.listen_address)
        answer = await client.call(SEND, send_fields("Any"), b"x")
        assert "No accessKey is configured" in (answer.remark or "")
        assert (await client.call(PULL, pull_fields("Any", 0))).code == 1
        await client.close()


async def test_everyone_may_send_traces_and_nobody_may_read_them_for_that(
    broker: BrokerController, client: RawClient
) -> None:
    topic = "RMQ_SYS_TRACE_TOPIC"
    sent = await client.call(SEND, signed(send_fields(topic), b"t", "subscriber"), b"t")
    assert sent.code == 0, sent.remark
    fields = {**pull_fields(topic, 0), "consumerGroup": "readers"}
    pulled = await client.call(PULL, signed(fields, key="subscriber"))
    assert f"No default permission for topic:{topic}" in (pulled.remark or "")
