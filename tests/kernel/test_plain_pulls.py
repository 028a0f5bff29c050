"""Plain pulls: the kernel, its twin and the slow path answer, count and note the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.filter.pull_subscription import PullSubscriptions
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.groups.offset_moved import OffsetMovedEvents
from skylarkmq.broker.net.peer_connection import PAUSE_SIZE
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.processor import plain_pulls
from skylarkmq.broker.processor.plain_pulls import PlainPulls
from skylarkmq.broker.processor.pull import PullProcessor
from skylarkmq.broker.pulling.long_polling import PullRequestHoldService
from skylarkmq.client.wire.api_pull import PullRequest
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData, SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType, encode_frame
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.tags_code import tags_code
from tests.broker.group_rig import GroupRig
from tests.store.support import HOST
from tests.support.amounts import examples
from tests.support.fake_transport import Owner, Transport, connect
from tests.support.manual_clock import settle

CODECS = (SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK)
ROADS = ("kernel", "python", "full") if kernel.compiled is not None else ("python", "full")
COUNT = 330
"""Messages of each queue: over three files of a queue and some of the log."""
VERSION = 7
TAGS = ("a", "b", "rare")
MANY_TAGS = "||".join(f"tag-{number}" for number in range(30)) + "||b"
PLAIN = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "7", "expressionType": "TAG",
}  # fmt: skip


def fill(rig: GroupRig) -> None:
    """Two queues whose records lie in turns, then alone, so that runs are short and long."""
    for number in range(COUNT):
        for queue_id in (0, 1):
            if queue_id and number > COUNT // 2:
                continue
            tag = "rare" if number == 100 else TAGS[number % 7 % 2]
            body = b"%d" % number * (queue_id + number % 40)
            rig.put(
                "T", queue_id, body, tags_code=tags_code(tag), properties=f"TAGS\1{tag}".encode()
            )
    rig.workers.run_all()
    rig.store.queues.flusher.write()
    rig.workers.run_all()


def make_rig() -> GroupRig:
    rig = GroupRig().start()
    for name, perm in (("T", 6), ("Empty", 6), ("Shut", 2)):
        rig.topics.table[name] = TopicConfig(
            topic_name=name, read_queue_nums=3, write_queue_nums=3, perm=perm
        )
    for name, may in (("g", True), ("inline", True), ("off", False)):
        rig.groups.table[name] = SubscriptionGroupConfig(group_name=name, consume_enable=may)
    rig.groups._config = dataclasses.replace(rig.config, auto_create_subscription_group=False)
    fill(rig)
    return rig


RIG = make_rig()
SPAN = RIG.store._reader._memory_span
LOG_END = RIG.store.commit_log.max_offset


def subscribe(tags: str, version: int = VERSION) -> None:
    """A heartbeat of a member of the group `g`."""
    codes = {tags_code(tag) for tag in tags.split("||")} if tags != "*" else set[int]()
    subscription = SubscriptionData(
        topic="T", sub_string=tags, sub_version=version, code_set=frozenset(codes)
    )
    data = ConsumerData(
        group_name="g", consume_type="CONSUME_PASSIVELY", message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET", subscription_data_set=[subscription],
    )  # fmt: skip
    RIG.consumers.register(MEMBER, "c", LanguageCode.JAVA, 1, data)


MEMBER = connect(Owner())[0]
subscribe("*")


class Road:
    """A connection with the router and the processor of pulls, over the common store."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = BrokerStats()
        writer = TableWriter(RIG.files, RIG.workers.tables)
        parts = RIG.config, RIG.files, writer, RIG.clock
        self.offsets = ConsumerOffsetManager(*parts, RIG.store)
        context = dataclasses.replace(RIG.context, offsets=self.offsets)
        filters = ConsumerFilterManager(RIG.config, RIG.clock)
        self.holding = PullRequestHoldService(RIG.store, RIG.clock, long_polling=False)
        self.plain = PlainPulls(context, self.stats, RIG.clock, lambda: None)
        processor = PullProcessor(
            context,
            PullSubscriptions(RIG.config, RIG.consumers, filters),
            self.holding,
            OffsetMovedEvents("broker-a", RIG.store, RIG.clock, HOST),
            self.stats,
            RIG.clock,
            self.plain,
        )
        pulls = None if name == "full" else self.plain
        router = Router(processor.handlers(), self.stats, RIG.clock, pulls=pulls)
        owner = Owner()
        owner.stats = self.stats
        owner.on_frames = router.handle
        self.connection, self.transport = connect(owner, Transport())
        self.connection.codec_settled = True
        self.plain_count = 0

    async def read(self, data: bytes) -> None:
        """One read of the socket, and what follows of it."""
        function = kernel.twins["take_pulls"]
        if self.name == "kernel":
            assert kernel.compiled is not None
            function = kernel.compiled.take_pulls

        def take(*given: Any) -> Any:
            taken = function(*given)
            self.plain_count += taken[0] if taken else 0
            return taken

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plain_pulls, "take_pulls", take)
            self.connection.data_received(data)
            for _ in range(9):
                RIG.workers.run_all()
                await settle(1)

    def state(self) -> tuple[object, ...]:
        """What was answered, counted and noted."""
        stats = self.stats
        traffics = stats.frames_in, stats.frames_out, stats.topics_out
        return (
            b"".join(self.transport.writes),
            self.transport.ended,
            [{key: (each.count, each.bytes) for key, each in table.items()} for table in traffics],
            stats.pull_results,
            {key: each.count for key, each in stats.requests.items()},
            stats.protocol_errors,
            self.offsets.table,
            self.holding.count,
        )


def pull(codec: int = SerializeType.JSON, opaque: int = 5, **fields: Any) -> bytes:
    """The frame of a pull; a field that is None is left out."""
    texts = {name: text for name, text in (PLAIN | fields).items() if text is not None}
    command = RemotingCommand(11, opaque=opaque, ext_fields=texts)
    command.serialize_type = SerializeType(codec)
    return encode_command(command)


OPENING = b"".join(
    pull(codec, sysFlag=flag, subscription=tags, queueId=queue_id)
    for codec in CODECS[:1]
    for queue_id in ("0", "1")
    for flag, tags in (("0", None), ("4", "*"), ("4", "a || c"), ("4", "rare"), ("4", MANY_TAGS))
)


async def check(*reads: bytes) -> list[Road]:
    """Hand reads in on all roads, after pulls that open lanes, and compare."""
    roads = [Road(name) for name in ROADS]
    for road in roads:
        for data in (OPENING, *reads):
            await road.read(data)
    *others, full = roads
    for road in others:
        for mine, expected in zip(road.state(), full.state(), strict=True):
            assert mine == expected, road.name
    return others


NUMBERS = st.sampled_from(["0", "1", "-1", "007", "+3", "", "x", "2147483648", "1" * 19, "1" * 20])
CHANGES: dict[str, st.SearchStrategy[str | None]] = {
    "consumerGroup": st.sampled_from(["off", "none", "é", "", None, "g\0T"]),
    "topic": st.sampled_from(["Empty", "Shut", "None", "é", None]),
    "queueId": st.sampled_from(["1", "2", "3", "01", "-1", None]),
    "maxMsgNums": NUMBERS | st.sampled_from(["1", "2", "31", "33", "5000", None]),
    "sysFlag": NUMBERS | st.sampled_from(["0", "1", "2", "3", "5", "6", "7", "12", None]),
    "commitOffset": NUMBERS | st.sampled_from(["300", "331", None]),
    "suspendTimeoutMillis": NUMBERS | st.none(),
    "subscription": st.sampled_from(["", "a || c", "rare", "x", MANY_TAGS, "a\0", '"', None]),
    "subVersion": NUMBERS | st.sampled_from(["6", "8", None]),
    "expressionType": st.sampled_from(["", "SQL92", "tag", None]),
    "maxMsgBytes": NUMBERS | st.sampled_from(["1", "262144", "262145", "2000000000"]),
    "bname": st.sampled_from(["broker-a", "é", ""]),
    "codec": st.just("msgpack.1"),
    "other": st.just("x"),
}
FIELDS = st.sampled_from(sorted(CHANGES)).flatmap(
    lambda name: CHANGES[name].map(lambda value: {name: value})
)
SUBSCRIPTIONS = st.sampled_from(
    [
        {"sysFlag": "4", "subscription": "*"},
        {"sysFlag": "5", "subscription": "a || c", "commitOffset": "9"},
        {"sysFlag": "6", "subscription": "rare"},
        {"sysFlag": "4", "subscription": MANY_TAGS},
        {"sysFlag": "3", "subscription": None, "expressionType": None},
    ]
)
OFFSETS = st.integers(0, COUNT + 2) | st.sampled_from([99, 100, 101, COUNT - 1, COUNT])
# Values that are no strings, as msgpack can have them.
MIXED: dict[str, st.SearchStrategy[Any]] = {
    "queueId": st.sampled_from([0, 1, 2, True]),
    "maxMsgNums": st.sampled_from([0, 32, 300, 70_000]),
    "subVersion": st.sampled_from([0, 7, 2**40, -1]),
    "topic": st.sampled_from(["T", b"T", b"\xff"]),
    "subscription": st.sampled_from([b"*", b"rare", 1.5]),
}


TROUBLES = ("code", "flag", "remark", "opaque", "body", "byte")


@st.composite
def pulls(draw: st.DrawFn) -> bytes:
    """Frames of pulls, most of them plain; some have one thing that is not."""
    trouble = draw(st.sampled_from([*TROUBLES, *[""] * len(TROUBLES)]))
    fields = {"queueOffset": str(draw(OFFSETS)), "queueId": draw(st.sampled_from("0001"))}
    fields |= draw(SUBSCRIPTIONS)
    texts: dict[str, Any] = PLAIN | fields | (draw(FIELDS) if draw(st.booleans()) else {})
    command = RemotingCommand(
        draw(st.sampled_from([361, 12])) if trouble == "code" else 11,
        opaque=-1 if trouble == "opaque" else draw(st.sampled_from([0, 1, 200, 70_000, 2**31 - 1])),
        flag=2 if trouble == "flag" else 0,
        remark="hm" if trouble == "remark" else None,
        ext_fields={name: text for name, text in texts.items() if text is not None},
        body=b"body" if trouble == "body" else b"",
    )
    command.serialize_type = draw(st.sampled_from(CODECS))
    if command.serialize_type == SerializeType.MSGPACK and draw(st.booleans()):
        command.ext_fields |= {name: draw(MIXED[name]) for name in MIXED if draw(st.booleans())}
    frame = bytearray(encode_command(command))
    if trouble == "byte":
        header_size = int.from_bytes(frame[5:8])
        frame[draw(st.integers(8, 7 + header_size))] ^= draw(st.integers(1, 255))
    return bytes(frame)


@examples(50, 400)
@given(
    st.lists(pulls(), min_size=1, max_size=6),
    st.sampled_from([SPAN, SPAN, SPAN, LOG_END - 50_000, 20_000]),
    st.sampled_from([0, 0, LOG_END // 2, LOG_END]),
)
async def test_a_read_of_pulls(pieces: list[bytes], span: int, verify_below: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RIG.store._reader, "_memory_span", span)
        patch.setattr(RIG.store._reader, "verify_below", verify_below)
        await check(b"".join(pieces), b"".join(pieces))


ODD = (
    (b'"opaque":5', b'"opaque":05'), (b'"opaque":5', b'"opaque":2147483648'),
    (b'"opaque":5', b'"opaque":-5'), (b'"opaque":5', b'"opaque":5,"opaque":6'),
    (b'"opaque":5', b'"opaque":null'), (b'"opaque":5', b'"opaque":5.0'), (b',"opaque":5', b""),
    (b'"queueId":"0"', b'"queueId":"1","queueId":"0"'), (b'"queueId":"0"', b'"queueId":0'),
    (b'"queueId":"0"', b'"queueId":null'), (b'"queueId":"0"', b'"queueId":"\\u0030"'),
    (b'"queueId":"0"', b'"queueId": "0"'), (b'"queueId"', b'"queue\\u0049d"'),
    (b'"subscription":"*"', b'"subscription":"\\u002a"'),
    (b'"subscription":"*"', b'"subscription":null'), (b'"topic":"T"', b'"topic":"\xff"'),
    (b'"language":"PYTHON"', b'"language":"\xff"'), (b'"language":"PYTHON"', b'"language":1'),
    (b'"language":"PYTHON"', b'"other":"x"'), (b'"code":11,', b'"code":11,"code":11,'),
    (b'"code":11,', b'"code":11,"remark":null,'), (b'"}', b'"} '), (b"}", b"}}"),
)  # fmt: skip


@pytest.mark.parametrize(("usual", "odd"), ODD)
async def test_headers_in_odd_json(usual: bytes, odd: bytes) -> None:
    (plain,) = FrameDecoder().feed(pull())
    assert usual in plain.header
    for header in (plain.header.replace(usual, odd, 1), odd.join(plain.header.rsplit(usual, 1))):
        await check(encode_frame(SerializeType.JSON, header))


@pytest.mark.parametrize("codec", CODECS)
async def test_plain_pulls_take_the_plain_road(codec: SerializeType) -> None:
    """Against a road that is so careful that it takes nothing."""
    kinds = (
        {},
        {"subscription": "a || c"},
        {"sysFlag": "1", "commitOffset": "3"},
        {"queueId": "1"},
    )
    data = [
        pull(codec, opaque=number, queueOffset=str(number * 7), **kinds[number % len(kinds)])
        for number in range(20)
    ]
    for road in await check(*data, b"".join(data)):
        assert road.plain_count == 2 * len(data)
        assert all(lane.traffic.count for lane in road.plain._lanes.values())


@pytest.mark.parametrize("codec", CODECS)
async def test_what_the_sdk_asks_is_plain(codec: SerializeType) -> None:
    queue = MessageQueue("T", "broker-a", 0)
    header = PullRequest("g", queue, 3, 32, VERSION, 0, 15_000).header()
    command = RemotingCommand(11, opaque=1, ext_fields=encode_fields(header))
    command.serialize_type = codec
    for road in await check(encode_command(command)):
        assert road.plain_count == 1


async def test_a_damaged_record_is_left_to_the_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    view = RIG.store.commit_log.mapped_files.mapped[0].view
    damaged = bytearray(view)
    damaged[200] ^= 1
    monkeypatch.setattr(RIG.store.commit_log.mapped_files.mapped[0], "view", memoryview(damaged))
    monkeypatch.setattr(RIG.store._reader, "verify_below", LOG_END)
    for road in await check(pull(), pull(queueOffset="50")):
        assert road.plain_count == 1, "the second one's records are sound"


async def test_answers_end_where_the_peer_has_enough() -> None:
    """All that is asked for comes, with a look at the peer every so many bytes."""
    count = PAUSE_SIZE // 20_000
    for road in await check(b"".join(pull(queueOffset=str(1 + 3 * n)) for n in range(count))):
        assert road.plain_count == count


async def test_what_has_changed_is_looked_at_again() -> None:
    """A group, a topic, a subscription; each costs every lane."""
    by_heartbeat = pull(sysFlag="0", subscription=None, subVersion="8")
    road = Road(ROADS[0])
    for data in (OPENING, pull()):
        await road.read(data)
    assert road.plain_count == 1
    subscribe("a", version=8)
    await road.read(pull() + by_heartbeat)
    await road.read(pull() + by_heartbeat)
    assert road.plain_count == 3
    RIG.groups.update(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    await road.read(pull())
    assert road.plain_count == 3
    assert b"no permission" in road.transport.writes[-1]
    RIG.groups.update(SubscriptionGroupConfig(group_name="g"))
    await road.read(pull())
    await road.read(pull())
    assert road.plain_count == 4
    RIG.consumers.unregister(MEMBER, "g")
    await road.read(by_heartbeat)
    assert b"group info not exist" in road.transport.writes[-1]
    subscribe("*")


async def test_units_that_the_disk_gave_serve_the_next_pulls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (unit,) = RIG.store.queue_units("T", 0, 60, 1)
    monkeypatch.setattr(RIG.store._reader, "_memory_span", LOG_END - unit.commit_offset)
    queue = RIG.store.queues.get("T", 0)
    assert queue is not None and queue.tail_start > 110 and RIG.store.has_cold
    reads = [pull(queueOffset=str(offset)) for offset in (70, 75, 40, 80, 99, 105)]
    for road in await check(*reads):
        # At 70 and 105 the units are in a file alone; at 40 they are, and the messages are old.
        assert road.plain_count == 3


async def test_a_disk_that_cannot_read_units_fails_only_who_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = RIG.store.queues.reader.units

    def read_some(folder: Path, first_unit: int, max_count: int) -> bytes:
        if first_unit == 20:
            raise OSError("the disk cannot read this")
        return read(folder, first_unit, max_count)

    monkeypatch.setattr(RIG.store.queues.reader, "units", read_some)
    for road in await check(pull(queueOffset="200") + pull(queueOffset="20") + pull(queueId="1")):
        assert road.plain_count == 2, "the first and the last one's units are in memory"
        assert b"the disk cannot read this" in b"".join(road.transport.writes)
