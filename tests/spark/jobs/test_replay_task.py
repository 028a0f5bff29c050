"""A task of a replay: order by source queue, a ledger that never says too much, and a pace."""

from __future__ import annotations

import json
import pickle
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import cast

import pyarrow as pa
import pytest

from skylarkmq.client.errors import ConnectionFailed
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.spark.jobs import replay_task as replay_task_module
from skylarkmq.spark.jobs.replay_ledger import Done, Ledger
from skylarkmq.spark.jobs.replay_task import (
    COLUMNS,
    Pace,
    ReplaySetup,
    ReplayTask,
    runs,
)
from skylarkmq.spark.ledgers.hold import RUN, Hold, InUseError, RunEndedError
from skylarkmq.spark.ledgers.objects import objects_at
from skylarkmq.spark.schema import arrow_schema
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.storage import Location
from skylarkmq.spark.writing.rows import RowError
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.unique_keys import key_of_values
from skylarkmq.spark.writing.window import Batch, Outgoing, Receipt
from tests.spark.support.s3_server import S3Server
from tests.spark.support.sent_messages import messages_of
from tests.support.patience import until_sync

SCHEMA = arrow_schema([name for name, _ in COLUMNS])
OPTIONS = SinkOptions(
    ConnectionSettings(name_servers=("127.0.0.1:9876",)), topic="again", batch_count=7
)
SOURCES = [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)]
TARGETS = [MessageQueue("again", "x", 0), MessageQueue("again", "x", 1)]


class Clock:
    """Goes on only by sleeping."""

    def __init__(self) -> None:
        self.s = 100.0
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.slept.append(seconds)
            self.s += seconds


class Window:
    """Stores at once; acknowledges at `flush`; may fail after so many requests."""

    def __init__(
        self, stored: dict[MessageQueue, list[Outgoing]], fail_after: int | None = None
    ) -> None:
        self.stored = stored
        self.receipts: list[Receipt] = []
        self.sizes: list[int] = []
        self._left = fail_after

    def send(
        self,
        queue: MessageQueue,
        what: Outgoing | Batch,
        *,
        others: Sequence[MessageQueue] = (),
    ) -> None:
        assert not others
        if self._left is not None:
            if not self._left:
                raise ConnectionFailed("127.0.0.1:1", "went away")
            self._left -= 1
        messages = messages_of(what)
        self.stored[queue] += messages
        self.sizes.append(len(messages))
        first, last = messages[0].unique_key, messages[-1].unique_key
        self.receipts.append(Receipt(queue, len(messages), 1, first, last, 0))

    def flush(self) -> list[Receipt]:
        found, self.receipts = self.receipts, []
        return found


def row(source: MessageQueue, offset: int, body: bytes | None = None) -> dict[str, object]:
    return {
        **dict(zip(("topic", "brokerName", "queueId"), source, strict=True)),
        "queueOffset": offset, "msgId": f"{source.broker_name}{source.queue_id}-{offset}",
        "keys": f"k{offset}", "tags": None if offset % 2 else "even",
        "body": body_of(source, offset) if body is None else body,
        "properties": [("UNIQ_KEY", "old"), ("colour", "blue"), ("__SHARDINGKEY", "s")],
        "flag": offset,
    }  # fmt: skip


def batches(rows: list[dict[str, object]], step: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), step):
        yield pa.RecordBatch.from_pylist(rows[start : start + step], schema=SCHEMA)


def begin(folder: Path, run_id: str) -> None:
    """What a driver does at the beginning of a run."""
    objects = objects_at(Location.parse(str(folder)))
    objects.remove(RUN)
    objects.write(RUN, json.dumps({"run": run_id}).encode(), None)


def setup_of(ledger: Ledger) -> ReplaySetup:
    numbers = {source: number for number, source in enumerate(SOURCES)}
    targets = {source: TARGETS[number % 2] for source, number in numbers.items()}
    return ReplaySetup(OPTIONS, ledger, numbers, targets)


def setup_in(folder: Path, **more: object) -> ReplaySetup:
    begin(folder, "run")
    setup = setup_of(Ledger(Location.parse(str(folder)), "run"))
    return replace(setup, **more)  # type: ignore[arg-type]


def run(
    setup: ReplaySetup, window: Window, rows: list[dict[str, object]], step: int = 5,
    clock: Clock | None = None,
) -> list[tuple[int, Done]]:  # fmt: skip
    task = ReplayTask(setup, window, lambda topic: TARGETS, clock or Clock())
    return list(task.run(batches(rows, step)))


def test_all_of_a_message(tmp_path: Path) -> None:
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    found = run(setup_in(tmp_path), Window(stored), [row(SOURCES[2], 17)])
    assert found == [(2, Done(18, 1, len(str(SOURCES[2])) + 3))]
    ((queue, (message,)),) = stored.items()
    key = key_of_values(["T", "b", 0, 17])
    assert (queue, message.unique_key, message.flag) == (TARGETS[0], key, 17)
    assert message.body == f"{SOURCES[2]} 17".encode()
    assert decode_properties(message.properties.decode()) == {
        "UNIQ_KEY": key, "colour": "blue", "KEYS": "k17", "__SHARDINGKEY": "s",
    }  # fmt: skip


def test_ids_may_be_kept(tmp_path: Path) -> None:
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    run(setup_in(tmp_path, keep_ids=True), Window(stored), [row(SOURCES[0], 4)])
    assert stored[TARGETS[0]][0].unique_key == "a0-4"


def test_every_queue_is_written_down(tmp_path: Path) -> None:
    setup, window = setup_in(tmp_path), Window(defaultdict(list))
    rows = [row(source, offset, b"12") for source in SOURCES for offset in range(3)]
    found = run(setup, window, rows)
    assert found == [(number, Done(3, 3, 6)) for number in range(3)]
    assert [setup.ledger.done(number) for number in range(3)] == [done for _, done in found]


def test_an_earlier_runs_messages_are_passed_over(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    setup.ledger.claim(0)
    setup.ledger.record(0, Done(7, 3, 30))
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    found = run(setup, Window(stored), [row(SOURCES[0], offset, b"12") for offset in range(10)])
    assert [message.flag for message in stored[TARGETS[0]]] == [7, 8, 9]
    assert found == [(0, Done(10, 6, 36))]
    assert run(setup, Window(stored), [row(SOURCES[0], 9)]) == found


def body_of(source: MessageQueue, offset: int) -> bytes:
    return f"{source} {offset}".encode()


@pytest.mark.parametrize("seed", range(20))
def test_whenever_it_ends_the_next_run_sends_the_rest(tmp_path: Path, seed: int) -> None:
    """At least once, in order, and again only what no record had covered."""
    chance = random.Random(seed)
    setup = setup_in(tmp_path)
    places = [
        (source, offset)
        for source in SOURCES
        for offset in sorted(chance.sample(range(200), chance.randrange(1, 60)))
    ]
    rows = [row(source, offset) for source, offset in places]
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_task_module, "RECORD_ROWS", chance.randrange(5, 30))
        for _ in range(3):
            window = Window(stored, fail_after=chance.randrange(8))
            with suppress(ConnectionFailed):
                run(setup, window, rows, chance.randrange(1, 40))
            bodies = {message.body for each in stored.values() for message in each}
            for number, source in enumerate(SOURCES):
                below = setup.ledger.done(number).next_offset
                assert bodies >= {
                    body_of(*place) for place in places if place[0] == source and place[1] < below
                }
        run(setup, Window(stored), rows)
    for source in SOURCES:
        wanted = [body_of(*place) for place in places if place[0] == source]
        got = [message.body for message in stored[setup.targets[source]]]
        got = [body for body in got if body in wanted]
        first = {body: place for place, body in reversed(list(enumerate(got)))}
        last = {body: place for place, body in enumerate(got)}
        for found in (first, last):
            assert sorted(found, key=lambda body: found[body]) == wanted


def test_the_ledger_follows_the_acknowledgements(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    window = Window(defaultdict(list), fail_after=1)
    with pytest.raises(ConnectionFailed):
        run(setup, window, [row(SOURCES[0], offset) for offset in range(20)])
    assert setup.ledger.done(0) == Done()


def test_a_task_does_not_outlive_its_run(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_task_module, "RECORD_ROWS", 10)
        task = ReplayTask(setup, Window(stored), lambda topic: TARGETS, Clock())

        def ended() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches([row(SOURCES[0], n) for n in range(40)], 1)):
                if number == 15:
                    begin(tmp_path, "another")
                yield batch

        with pytest.raises(RunEndedError):
            list(task.run(ended()))
    assert len(stored[TARGETS[0]]) == 20
    assert setup.ledger.done(0).next_offset == 20  # they are sent: the next run need not
    (tmp_path / RUN).unlink()
    with pytest.raises(RunEndedError):
        run(setup, Window(stored), [row(SOURCES[1], 0)])
    assert not stored[TARGETS[1]]


def test_of_two_runs_that_start_at_once_one_sends(place: Location) -> None:
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    rows = [row(source, offset) for source in SOURCES for offset in range(30)]
    start, winners = Barrier(2), list[Ledger]()

    class Watching(Clock):
        """The loser watches the winner's mark, which its thread renews meanwhile."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            until_sync(lambda: winners)
            assert winners[0]._hold is not None
            winners[0]._hold.renew()

    def replay(_: int) -> bool:
        start.wait()
        ledger = Ledger(place, clock=Watching())
        try:
            ledger.__enter__()
        except InUseError:
            return False
        winners.append(ledger)
        run(setup_of(pickle.loads(pickle.dumps(ledger))), Window(stored), rows)
        start.wait()
        ledger.__exit__()
        return True

    def refused(number: int) -> bool:
        has_won = replay(number)
        if not has_won:
            start.wait()
        return has_won

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(refused, range(2))) == [False, True]
    check_once(stored, rows)


def check_once(stored: dict[MessageQueue, list[Outgoing]], rows: list[dict[str, object]]) -> None:
    bodies = sorted(message.body for messages in stored.values() for message in messages)
    assert bodies == sorted(cast("bytes", each["body"]) for each in rows)


def test_a_run_taken_for_dead_sends_no_more_than_it_had_under_way(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Location.parse(s3_server.place(), s3_server.options, {})
    monkeypatch.setattr(Hold, "_keep", lambda self: None)  # as if its driver stood still
    monkeypatch.setattr(replay_task_module, "RECORD_ROWS", 10)
    stored: dict[MessageQueue, list[Outgoing]] = defaultdict(list)
    rows = [row(SOURCES[0], offset) for offset in range(40)]
    first = Ledger(place, clock=Clock()).__enter__()

    def overtaken() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(rows, 1)):
            if number == 15:
                with Ledger(place, clock=Clock()) as second:
                    run(setup_of(second), Window(stored), rows)
            yield batch

    task = ReplayTask(setup_of(first), Window(stored), lambda topic: TARGETS, Clock())
    with pytest.raises(RunEndedError):
        list(task.run(overtaken()))
    times = Counter(message.flag for message in stored[TARGETS[0]])
    assert times.keys() == set(range(40))
    # Recorded were the first ten; the first run stopped when it wanted to record ten more.
    assert {flag for flag, count in times.items() if count > 1} == set(range(10, 20))
    assert first.done(0).next_offset == 40
    first.__exit__()


def test_a_message_that_cannot_be_sent_says_where_it_is_from(tmp_path: Path) -> None:
    rows = [row(SOURCES[1], 4), row(SOURCES[1], 5, bytes(4 * 1024 * 1024 + 1))]
    with pytest.raises(RowError, match=r"offset 5 of queue 1 of topic T on broker a: .*limit"):
        run(setup_in(tmp_path), Window(defaultdict(list)), rows)


def test_the_ledger_is_written_every_second(tmp_path: Path) -> None:
    clock, setup = Clock(), setup_in(tmp_path, rate=10.0)
    rows = [row(SOURCES[0], offset) for offset in range(25)]
    task = ReplayTask(setup, Window(defaultdict(list)), lambda topic: TARGETS, clock)
    seen = set()

    def watched() -> Iterator[pa.RecordBatch]:
        for batch in batches(rows, 1):
            seen.add(setup.ledger.done(0).next_offset)
            yield batch

    list(task.run(watched()))
    assert len(seen) == 3
    assert setup.ledger.done(0).next_offset == 25


def test_a_rate_is_kept(tmp_path: Path) -> None:
    clock, window = Clock(), Window(defaultdict(list))
    rows = [row(SOURCES[0], offset) for offset in range(100)]
    run(setup_in(tmp_path, rate=20.0), window, rows, clock=clock)
    assert 100 / 20 - 0.3 <= clock.s - 100 <= 100 / 20
    assert max(window.sizes) <= 4  # a fifth of a second's


def test_lost_time_is_not_made_up_for() -> None:
    clock = Clock()
    pace = Pace(10.0, clock)
    clock.s += 1000
    for _ in range(20):
        pace.take()
    assert sum(clock.slept) >= 1.5


def test_runs_of_one_source_queue() -> None:
    places = [SOURCES[0], SOURCES[0], SOURCES[1], SOURCES[0]]
    rows = [row(source, offset) for offset, source in enumerate(places)]
    (batch,) = batches(rows, 9)
    assert [(queue, part.column(3).to_pylist()) for queue, part in runs(batch)] == [
        (SOURCES[0], [0, 1]), (SOURCES[1], [2]), (SOURCES[0], [3])
    ]  # fmt: skip
    assert list(runs(batch.slice(0, 0))) == []
