"""The benchmark itself: its requests are what it says, its arithmetic is right."""

import struct

import pytest

from skylarkmq.protocol.batch import split_batch
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import decode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.protocol.headers.send import decode_send_header
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import is_signed
from tests.bench import failover
from tests.bench.frames import (
    ACCESS_KEY,
    PULL_COUNT,
    RING_COUNT,
    SECRET_KEY,
    Answers,
    Refusal,
    Ring,
    batch_ring,
    pull_ring,
    send_ring,
    signed_ring,
    spread_ring,
    timer_ring,
)
from tests.bench.load import Figures, Job, percentile
from tests.bench.other_frames import crc32c, kafka_batch, talk, zigzag
from tests.bench.report import Report, Row, Start
from tests.bench.rocketmq import OURS, Measured, pulls, sends
from tests.bench.rocketmq import Row as PeerRow
from tests.bench.scaling import Cores, counts_up_to, growth, rate_of, together
from tests.bench.scenarios import ASYNC, SYNC, Scenario, all_scenarios


def commands(ring: Ring, index: int, count: int) -> list[RemotingCommand]:
    frames = FrameDecoder().feed(bytes(ring.slice(index, count)))
    return [decode_command(frame) for frame in frames]


@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_sends_of_a_ring(codec: SerializeType) -> None:
    ring = send_ring("t", 128, codec)
    around = commands(ring, RING_COUNT - 2, 4)
    assert [command.opaque % 100_000 for command in around] == [
        RING_COUNT - 2,
        RING_COUNT - 1,
        0,
        1,
    ]
    header = decode_send_header(RequestCode.SEND_MESSAGE_V2, around[0].ext_fields)
    assert (header.topic, header.batch, len(around[0].body)) == ("t", False, 128)
    assert {command.serialize_type for command in around} == {codec}


@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
def test_a_signed_ring_holds_the_same_requests(codec: SerializeType) -> None:
    plain = send_ring("t", 128, codec)
    ring = signed_ring(plain)
    assert (ring.count, ring.messages) == (plain.count, plain.messages)
    for index in (0, RING_COUNT - 1):
        (bare,), (command,) = commands(plain, index, 1), commands(ring, index, 1)
        fields = dict(command.ext_fields)
        assert is_signed(SECRET_KEY.encode(), fields, command.body, fields.pop("Signature"))
        assert fields.pop("AccessKey") == ACCESS_KEY
        assert (fields, command.body) == (bare.ext_fields, bare.body)
        assert (command.opaque, command.serialize_type) == (bare.opaque, codec)


def test_batches_of_a_ring() -> None:
    (command,) = commands(batch_ring("t", 128, SerializeType.JSON, 32), 0, 1)
    assert decode_send_header(command.code, command.ext_fields).batch
    assert [len(item.body) for item in split_batch(command.body)] == [128] * 32


def test_spread_sends_go_over_all_topics_or_queues() -> None:
    ring = spread_ring("t", 16, SerializeType.JSON, topics=3000, queues=1)
    headers = [decode_send_header(310, one.ext_fields) for one in commands(ring, 0, 3000)]
    assert {header.topic for header in headers} == {f"t-{number:05d}" for number in range(3000)}
    ring = spread_ring("t", 16, SerializeType.JSON, topics=1, queues=1024)
    headers = [decode_send_header(310, one.ext_fields) for one in commands(ring, 0, 1024)]
    assert {header.queue_id for header in headers} == set(range(1024))


def test_timers_of_a_ring_fall_due_within_the_span() -> None:
    ring = timer_ring("t", 16, SerializeType.JSON, 1_800_000_000_000, 60_000)
    headers = [decode_send_header(310, one.ext_fields) for one in commands(ring, 0, RING_COUNT)]
    due = [
        int(decode_properties(header.properties or "")["TIMER_DELIVER_MS"]) - 1_800_000_000_000
        for header in headers
    ]
    assert due[0] == 0 and 59_900 < due[-1] < 60_000
    assert due == sorted(due)


def test_pulls_of_a_ring() -> None:
    first, second = commands(pull_ring("t", SerializeType.JSON), 0, 2)
    offsets = [
        decode_fields(PullMessageRequestHeader, one.ext_fields).queue_offset
        for one in (first, second)
    ]
    assert offsets == [1000, 1032]


def test_percentiles_weigh_by_count() -> None:
    latencies = [(0.5, 1), (0.001, 98), (0.002, 1)]
    assert percentile(latencies, 0.5) == 0.001
    assert percentile(latencies, 0.99) == 0.002
    assert percentile(latencies, 1.0) == 0.5
    assert percentile([], 0.5) == 0.0


def test_report_shows_medians_beside_targets() -> None:
    def row(flush: str, rate: int) -> Row:
        scenario = Scenario("send, 512 connections", flush, Job("send", 0, 0), 8.0)
        rounds = [
            Figures(messages=rate, seconds=1.0, cpu_s=rate * us / 1e6, p50_s=0.002, p99_s=0.004)
            for us in (5, 4, 90)
        ]
        return Row(scenario, rounds, [])

    report = Report([row(ASYNC, 1000), row(SYNC, 700)], 0.6, 1.5, Start(0.4, 0.3, 34.2, 12.4))
    lines = report.text().splitlines()
    assert "CPU us" in lines[2]
    shown = lines[3].split()
    assert shown[3:6] == ["async", "128", "1,000"]
    assert shown[6:9] == ["5.00", "<=", "8"]
    facts = {name: (figure, target) for name, figure, target in report.facts()}
    assert facts["sync rate / async rate, 512 clients"] == ("70%", ">= 60%")
    assert facts["CPU until then"] == ("0.30 s", "< 0.35 s")
    assert facts["idle broker, resident"] == ("34.2 MiB", "< 33 MiB")


def test_every_scenario_has_its_own_name() -> None:
    for quick in (False, True):
        keys = [scenario.key for scenario in all_scenarios("JSON", quick=quick)]
        assert len(keys) == len(set(keys))


def test_ratios_beside_a_peer_are_taken_round_by_round() -> None:
    measured = Measured(PeerRow("send", ASYNC))
    measured.rounds[OURS] = [Figures(100, 1.0, us / 1e4) for us in (10, 20, 40)]
    measured.rounds["RocketMQ"] = [Figures(100, 1.0, us / 1e4) for us in (30, 30, 30)]
    assert measured.figures(OURS)["cpu_us"] == 20
    assert measured.ratios("RocketMQ") == [0.75, 1.5, 3.0]


def test_every_row_beside_a_peer_has_its_own_name() -> None:
    rows = [*sends(ASYNC), *sends(SYNC), *pulls()]
    assert len({(row.name, row.flush) for row in rows}) == len(rows)


def test_pulls_of_a_span_have_one_size() -> None:
    ring = pull_ring("t", SerializeType.JSON, "t3", 100_000, 116_000)
    (last,) = commands(ring, ring.count - 1, 1)
    header = decode_fields(PullMessageRequestHeader, last.ext_fields)
    assert (ring.count, header.queue_offset, header.subscription) == (500, 115_968, "t3")


NATS_ACK = b'MSG _INBOX.00000 1 30\r\n{"stream":"t","seq":7}\r\n'
NATS_PULLED = b"HMSG _INBOX.00000 1 12 16\r\nNATS/1.0\r\n\r\nbody\r\n" * PULL_COUNT
NATS_END = b"HMSG _INBOX.00000 1 28 28\r\nNATS/1.0 204 EOB\r\n\r\n\r\n"
REDIS_ID = b"$15\r\n1700000000000-0\r\n"
REDIS_PULLED = b"*2\r\n$4\r\n1-10\r\n*2\r\n$4\r\nbody\r\n$4\r\nbody\r\n" * PULL_COUNT


def kafka_answer(begin: int, code: int) -> bytes:
    """What stands before one topic, the topic's one queue with its code, and what follows."""
    answer = bytes(begin) + b"\0\1t" + struct.pack(">iih", 1, 0, code) + bytes(20)
    return struct.pack(">I", len(answer)) + answer


@pytest.mark.parametrize(
    ("protocol", "kind", "answer", "refusal"),
    [
        ("nats", "send", NATS_ACK, b'MSG a 1 9\r\n{"error":{"code":503}}\r\n'),
        ("nats", "batch", NATS_ACK * 3, b"-ERR 'Authorization Violation'\r\n"),
        ("nats", "pull", NATS_PULLED + NATS_END, b"HMSG a 1 9 9\r\nNATS/1.0 404 Message Not Found"),
        ("redis", "send", REDIS_ID, b"-ERR no\r\n"),
        ("redis", "batch", REDIS_ID * 3, b"-OOM no\r\n"),
        ("redis", "pull", b"*32\r\n" + REDIS_PULLED, b"-LOADING no\r\n"),
        ("kafka", "send", kafka_answer(8, 0), kafka_answer(8, 3)),
        ("kafka", "pull", kafka_answer(12, 0), kafka_answer(12, 1)),
    ],
)
def test_answers_of_other_brokers_are_counted(
    protocol: str, kind: str, answer: bytes, refusal: bytes
) -> None:
    batch = 3 if kind == "batch" else 1
    said = talk(Job(kind, 0, 0, "t", window=4, batch=batch, protocol=protocol))
    assert said.rings[0].messages == (PULL_COUNT if kind == "pull" else batch)
    assert said.answers().feed(answer * 4) == 4
    answers: Answers = said.answers()
    assert sum(answers.feed(bytes([byte])) for byte in answer * 2) == 2
    with pytest.raises(Refusal):
        answers.feed(refusal)


def test_record_batches_are_kafka_s() -> None:
    batch = kafka_batch([b"one", b"two"])
    offset, length, _, magic, crc = struct.unpack_from(">qiibI", batch)
    assert (offset, length, magic, crc) == (0, len(batch) - 12, 2, crc32c(batch[21:]))
    assert crc32c(b"123456789") == 0xE3069283
    assert batch.endswith(b"\0\0\2\1\6two\0")
    assert [zigzag(number) for number in (-1, 1, 63, 64, 1024)] == [
        b"\1", b"\2", b"\x7e", b"\x80\1", b"\x80\x10",
    ]  # fmt: skip


def test_what_several_processes_did_together() -> None:
    quick = Figures(messages=100, seconds=1.0, cpu_s=0.1, p99_s=0.002)
    slow = Figures(messages=100, seconds=2.0, cpu_s=0.3, p99_s=0.005)
    both = together([quick, slow])
    assert rate_of(both) == pytest.approx(150)
    assert (both.messages, both.cpu_s, both.p99_s) == (200, 0.4, 0.005)
    assert growth([both], [slow]) == [pytest.approx(3.0)]


@pytest.mark.parametrize(
    ("cores", "servers", "load", "processes"),
    [
        ([0], {0}, {0}, 1),
        ([2, 3], {2, 3}, {2, 3}, 2),
        ([0, 1, 2, 3, 4], {0, 1}, {2, 3, 4}, 2),
        (list(range(64)), set(range(32)), set(range(32, 64)), 8),
    ],
)
def test_servers_and_load_share_the_cores(
    cores: list[int], servers: set[int], load: set[int], processes: int
) -> None:
    assert Cores.of(cores) == Cores(frozenset(servers), frozenset(load), processes)


def test_processes_are_doubled_up_to_all() -> None:
    assert [counts_up_to(count) for count in (1, 2, 6, 8)] == [
        [1],
        [1, 2],
        [1, 2, 4, 6],
        [1, 2, 4, 8],
    ]


def test_what_failover_costs_stands_beside_a_master_alone() -> None:
    def costs(master_us: float, others_us: float, p50_s: float) -> failover.Costs:
        return failover.Costs(master_us, others_us, Figures(p50_s=p50_s, p99_s=2 * p50_s))

    row = failover.works(20_000, SYNC)[0]
    assert (row.name, row.work.messages) == ("send, 1 in flight, 1024 B, SYNC_FLUSH", 2000)
    row.costs["failover, 1 follower"] = [costs(12, 20, 0.002), costs(18, 30, 0.004)]
    row.costs[failover.ALONE] = [costs(10, 0, 0.001), costs(10, 0, 0.001)]
    text = " ".join(row.shown().split())
    assert "15.00 us, 1.50 (1.20 to 1.80) times alone; the others 25.00 us" in text
    assert "p50 3.00 ms, p99 6.00 ms" in text
