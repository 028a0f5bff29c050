"""What is refused while the broker has too much to do, and why."""

from __future__ import annotations

import math
from typing import Any

import pytest

from skylarkmq.broker.base.loop_lag import TICK_S
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.fast_failure import LATE_TICKS, FastFailure
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from tests.support.fake_transport import Owner, connect
from tests.support.live_broker import broker_config

SEND, BACK, PULL, HEARTBEAT, END, TOPIC = 310, 36, 11, 34, 37, 17
PAST_ALL_MS = 31_001


class Rig:
    """A gate before a connection; `handled` are the codes that came through."""

    def __init__(self, tmp_path: Any, **settings: Any) -> None:
        self.owner = Owner()
        self.stats: BrokerStats = self.owner.stats
        self.gate = FastFailure(broker_config(tmp_path, **settings), self.stats)
        self.owner.gate = self.gate
        self.connection, self.transport = connect(self.owner)
        self.late(0)

    def late(self, count: int, by_s: float = 1.0) -> None:
        """Ticks that are late, one on time before them."""
        clock = self.owner.clock
        self.gate.ticked(clock.monotonic(), clock.monotonic())
        for _ in range(count):
            clock.advance(TICK_S + by_s)
            self.gate.ticked(clock.monotonic() - by_s, clock.monotonic())

    def read(self, *codes: int, **more: Any) -> dict[int, RemotingCommand]:
        """Let requests arrive in one read, the opaque of each its code; what was refused."""
        before = len(self.transport.writes)
        requests = [RemotingCommand.request(code, opaque=code, **more) for code in codes]
        self.owner.handled.clear()
        self.connection.data_received(b"".join(map(encode_command, requests)))
        data = b"".join(self.transport.writes[before:])
        answers = [decode_command(frame) for frame in FrameDecoder().feed(data)]
        return {answer.opaque: answer for answer in answers}

    def handled(self) -> list[int]:
        return [decode_command(frame).code for frames in self.owner.handled for frame in frames]


@pytest.fixture
def rig(tmp_path: Any) -> Rig:
    return Rig(tmp_path)


def test_a_broker_that_keeps_up_refuses_nothing(rig: Rig) -> None:
    rig.transport.silence_ms = PAST_ALL_MS  # a client that was quiet, and has just written
    assert rig.read(SEND, PULL, HEARTBEAT, END) == {}
    assert rig.handled() == [SEND, PULL, HEARTBEAT, END]


@pytest.mark.parametrize("late_ticks", range(LATE_TICKS))
def test_a_pause_alone_refuses_nothing(rig: Rig, late_ticks: int) -> None:
    rig.late(late_ticks, 5.0)
    rig.transport.silence_ms = PAST_ALL_MS
    assert rig.read(SEND) == {}


def test_what_waited_beyond_its_limit_is_refused_with_its_figures(rig: Rig) -> None:
    rig.late(LATE_TICKS)
    rig.transport.silence_ms = 201
    refused = rig.read(SEND, BACK, PULL, HEARTBEAT, END, TOPIC)
    assert sorted(refused) == [BACK, SEND]
    assert rig.handled() == [PULL, HEARTBEAT, END, TOPIC]
    assert refused[SEND].code == 2
    assert (refused[SEND].remark or "").startswith(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        "period in queue: 201ms, size of queue: 6; waitTimeMillsInSendQueue=200,"
    )
    assert rig.stats.rejections == {("send", "queue_wait"): 2}
    assert rig.stats.frames_in[0].count == 2, "the others are counted when they are handled"


@pytest.mark.parametrize(
    ("waited_ms", "refused"),
    [
        (200, []),
        (3000, [SEND]),
        (3001, [END, SEND]),
        (5001, [PULL, END, SEND]),
        (PAST_ALL_MS, [PULL, HEARTBEAT, END, SEND]),
    ],
)
def test_each_kind_of_request_has_its_limit(rig: Rig, waited_ms: int, refused: list[int]) -> None:
    rig.late(LATE_TICKS)
    rig.transport.silence_ms = waited_ms
    assert sorted(rig.read(SEND, END, PULL, HEARTBEAT, TOPIC)) == refused


def test_a_tick_in_time_ends_it(rig: Rig) -> None:
    rig.late(LATE_TICKS + 2)
    rig.transport.silence_ms = 1000
    assert rig.read(SEND)
    rig.late(0)
    assert rig.read(SEND) == {}


def test_what_is_read_before_a_late_tick_has_run_is_looked_at(rig: Rig) -> None:
    """Sockets come before timers in a turn of the loop."""
    rig.late(LATE_TICKS)
    rig.gate.ticked(0, 0.05)  # in time: nothing is looked at until the next one is late
    rig.late(0)
    now_s = rig.owner.clock.monotonic()
    assert now_s < rig.gate.watch_after_s < now_s + 2 * TICK_S + 0.2


def test_one_way_requests_are_dropped_without_an_answer(rig: Rig) -> None:
    rig.late(LATE_TICKS)
    rig.transport.silence_ms = 1000
    assert rig.read(SEND, oneway=True) == {}
    assert rig.handled() == []
    assert rig.stats.rejections == {("send", "queue_wait"): 1}


def test_answers_of_the_peer_are_never_refused(rig: Rig) -> None:
    rig.late(LATE_TICKS)
    rig.transport.silence_ms = PAST_ALL_MS
    response = RemotingCommand.request(SEND, opaque=1).reply(0)
    rig.connection.data_received(encode_command(response))
    assert len(rig.owner.handled) == 1


def test_a_header_that_can_not_be_read_is_left_to_its_turn(rig: Rig) -> None:
    rig.late(LATE_TICKS)
    rig.transport.silence_ms = 1000
    rig.connection.data_received(b"\x00\x00\x00\x08\x00\x00\x00\x04nope")
    assert len(rig.owner.handled) == 1


def test_without_fast_failure_nothing_is_refused_for_its_waiting(tmp_path: Any) -> None:
    rig = Rig(tmp_path, broker_fast_failure_enable=False)
    rig.late(LATE_TICKS)
    rig.transport.silence_ms = PAST_ALL_MS
    assert rig.read(SEND, PULL) == {}
    assert rig.gate.watch_after_s == math.inf


def test_calls_of_another_protocol_are_judged_by_the_same_rules(rig: Rig) -> None:
    assert rig.gate.late(SEND, 60.0) is None
    rig.late(LATE_TICKS)
    error = rig.gate.late(SEND, 0.5)
    assert error is not None and error.response_code == 2
    assert "500ms" in error.remark and "waitTimeMillsInSendQueue=200" in error.remark
    assert rig.gate.late(SEND, 0.1) is None
    assert rig.gate.late(TOPIC, 60.0) is None
    assert rig.stats.rejections == {("send", "queue_wait"): 1}
