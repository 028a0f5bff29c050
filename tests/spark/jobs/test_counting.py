"""The batches of the job `metrics`: killed at every step of keeping them, run again, compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from prometheus_client import CollectorRegistry

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.archive.delta_log import DeltaLog
from skylarkmq.spark.jobs import metrics
from skylarkmq.spark.jobs.common import JobError, JobSettings, UsageError
from skylarkmq.spark.jobs.metrics import Counting, MetricsOptions, WindowMetrics, row_text
from skylarkmq.spark.jobs.window_table import META, SCHEMA, STATE, WindowTable
from skylarkmq.spark.jobs.windows import Partial, Tally, WindowKey, WindowRow
from skylarkmq.spark.ledgers.hold import Hold, InUseError
from skylarkmq.spark.ledgers.objects import FolderObjects, StoreObjects, objects_at
from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.storage import Location
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.blocking_clock import TestClock

WINDOW_MS = 100
QUEUE = MessageQueue("T", "a", 0)
EVENTS = 10
"""The stream: message number n lies at offset n, and is some messages of one window."""


def event(number: int) -> Partial:
    """Every fourth message comes late, if its window was closed by a batch before."""
    at = (number - 3 if number % 4 == 3 else number) * 100
    return Partial(WindowKey(at, "T", "x"), Tally(messages=number + 1), at + 60)


class Killed(BaseException):
    """The process was killed here."""


class Steps:
    """Counts the steps that keep something, and dies before or after one of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.last = -1
        self.after = False
        for owner, name in (
            (FolderObjects, "write"), (StoreObjects, "write"), (WindowTable, "_add"),
            (DeltaLog, "_write"), (DeltaLog, "make_durable"), (Counting, "_send"),
        ):  # fmt: skip
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            dies = self.count == self.last
            if dies and not self.after:
                raise Killed
            found = change(*arguments, **named)
            if dies:
                raise Killed
            return found

        return counted


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[WindowRow]:
    """Spark's part: a frame is a stretch of the stream; and the rows that were sent to a topic."""
    found: list[WindowRow] = []
    monkeypatch.setattr(metrics, "partials", lambda frame, *_, **__: [event(n) for n in frame])
    monkeypatch.setattr(Counting, "_send", lambda self, spark, rows: found.extend(rows))
    # A process that is killed marks its place no more, and the next run need not wait.
    monkeypatch.setattr(Hold, "_keep", lambda self: None)
    return found


class Frame(list[int]):
    """A batch: the numbers of its messages."""

    sparkSession = None


def run(place: Location, step: int = 3, *, end: int = EVENTS) -> Counting:
    """One process: batches of `step` messages until it is killed or done."""
    table = WindowTable(place, clock=TestClock())
    table.__enter__()
    try:
        book = table.load(WINDOW_MS, 0, "store")
        options = MetricsOptions(("T",), str(place), window_ms=WINDOW_MS, delay_ms=0, to_topic="W")
        counting = Counting(options, JobSettings(), table, book)
        counting.finish_last(None)  # type: ignore[arg-type]
        for start in range(table.offsets.get(QUEUE, 0), end, step):
            stop = min(start + step, end)
            frame: Any = Frame(range(start, stop))
            counting.take(frame, QueueOffsets({QUEUE: stop}))
    except Killed:
        table._hold._give_lock_back()  # the system does
        raise
    table.__exit__()
    return counting


def rows_in(place: Location) -> list[dict[str, Any]]:
    table = DeltaTable(place.uri, storage_options=place.delta_options()).to_pyarrow_table()
    rows = table.select(SCHEMA.names).to_pylist()
    return sorted(rows, key=lambda row: (row["batchId"], row["kind"], row["windowStart"]))


def by_window(rows: list[dict[str, Any]], counting: Counting) -> Counter[int]:
    """Messages by window's start, whatever their kind of row; open windows as well."""
    found = Counter[int]()
    for row in rows:
        found[int(row["windowStart"].timestamp() * 1000)] += row["messages"]
    for key, tally in counting._book.open.items():
        found[key.start_ms] += tally.messages
    return found


EXPECTED = Counter[int]()
for _number in range(EVENTS):
    EXPECTED[event(_number).key.start_ms] += event(_number).tally.messages


def test_all_messages_are_there_once(place: Location, sent: list[WindowRow]) -> None:
    counting = run(place)
    rows = rows_in(place)
    assert by_window(rows, counting) == EXPECTED
    kinds = Counter(row["kind"] for row in rows)
    assert kinds["late"] == 2
    assert len(sent) == len(rows)
    log = DeltaTable(place.uri, storage_options=place.delta_options())
    assert log.transaction_version(counting._table.query_id) == rows[-1]["batchId"]
    assert run(place).summary().figures["batches"] == 0
    assert len(sent) == len(rows)


@pytest.mark.usefixtures("sent")
def test_figures_for_prometheus(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    place = Location.parse(str(tmp_path))
    counting = run(place)
    registry.register(WindowMetrics(counting._book))
    name = "skylarkmq_spark_window_messages_total"
    for kind in ("late", "window"):
        assert registry.get_sample_value(name, {"kind": kind}) == sum(
            row["messages"] for row in rows_in(place) if row["kind"] == kind
        )
    assert registry.get_sample_value("skylarkmq_spark_windows_open") == 1
    watermark = registry.get_sample_value("skylarkmq_spark_windows_watermark_timestamp_seconds")
    assert watermark == 0.96


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_the_result_is_the_same(
    place: Location, sent: list[WindowRow], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # the disk outlives a killed process
    run(place.child("whole"))
    expected = rows_in(place.child("whole"))
    steps = Steps(monkeypatch)
    steps.after = after
    died = 0
    for last in range(1, 100):
        output = place.child(f"{last}")
        steps.count, steps.last = 0, last
        sent.clear()
        try:
            run(output)
        except Killed:
            died += 1
        else:
            break
        steps.last = -1
        # The batches after it may be cut in another way.
        counting = run(output, 3 if last % 2 else 2)
        rows = rows_in(output)
        if last % 2:
            assert rows == expected
        assert by_window(rows, counting) == EXPECTED
        final = Counter(row["windowStart"] for row in rows if row["kind"] == "window")
        assert set(final.values()) == {1}
        assert {(*row.key, row.kind, row.batch_id) for row in sent} == {
            (int(row["windowStart"].timestamp() * 1000), row["topic"], row["tag"], row["kind"],
             row["batchId"])
            for row in rows
        }  # fmt: skip
        again = Counter((row.key, row.kind, row.batch_id) for row in sent)
        # Sent again were at most the rows of the batch that it died in, with the same ids.
        assert len({key[2] for key, times in again.items() if times > 1}) <= 1
    assert died > 15


def driver(place: Location) -> tuple[WindowTable, Counting]:
    """One of several that see no mark of one another: what they write is safe without it."""
    table = WindowTable(place, clock=TestClock())
    table._hold = _Unheld(place.child(META), "driver")
    table.__enter__()
    book = table.load(WINDOW_MS, 0, "store")
    options = MetricsOptions(("T",), str(place), window_ms=WINDOW_MS, delay_ms=0)
    return table, Counting(options, JobSettings(), table, book)


def take(counting: Counting, number: int) -> None:
    counting.take(Frame([number]), QueueOffsets({QUEUE: number + 1}))  # type: ignore[arg-type]


def check_all(place: Location) -> None:
    counting = run(place)
    rows = rows_in(place)
    assert by_window(rows, counting) == EXPECTED
    final = Counter(row["windowStart"] for row in rows if row["kind"] == "window")
    assert set(final.values()) == {1}


@pytest.mark.usefixtures("sent")
def test_who_comes_second_goes_no_further(place: Location) -> None:
    run(place, end=1)
    (_, first), (_, second) = driver(place), driver(place)
    take(first, 1)
    take(first, 2)
    with pytest.raises(JobError, match="was written by another run"):
        take(second, 1)
    check_all(place)


@pytest.mark.usefixtures("sent")
def test_two_drivers_race_and_nothing_is_lost_or_doubled(place: Location) -> None:
    run(place, end=1)
    start = Barrier(2)

    def race(_: int) -> bool:
        _, counting = driver(place)
        start.wait()
        try:
            for number in range(1, EVENTS):
                take(counting, number)
        except JobError as error:
            assert "was written by another run" in str(error)
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(race, range(2))).count(True) <= 1
    check_all(place)


class _Unheld(Hold):
    """A place that is not held."""

    def __enter__(self) -> _Unheld:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def check(self) -> None:
        return


@pytest.mark.usefixtures("sent")
def test_a_table_that_others_maintain_takes_the_rows_as_well(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OPTIMIZE comes between the look at the log and the commit."""
    run(place, end=6)
    before, write = [True], DeltaLog._write

    def compacted(self: DeltaLog, *arguments: Any) -> None:
        if before:
            before.pop()
            other = DeltaTable(place.uri, storage_options=place.delta_options())
            other.optimize.compact(commit_properties=CommitProperties(max_commit_retries=0))
        write(self, *arguments)

    monkeypatch.setattr(DeltaLog, "_write", compacted)
    counting = run(place)
    assert not before
    table = DeltaTable(place.uri, storage_options=place.delta_options())
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert by_window(rows_in(place), counting) == EXPECTED
    assert run(place, end=EVENTS + 4)._book.batch_id > counting._book.batch_id


@pytest.mark.usefixtures("sent")
def test_other_settings_are_refused(place: Location) -> None:
    run(place, end=1)
    told = pytest.raises(JobError, match="windows are 100 ms long, not 60000")
    with WindowTable(place, clock=TestClock()) as table, told:
        table.load(60_000, 0, "store")


@pytest.mark.usefixtures("sent")
@pytest.mark.parametrize("text", ['{"query": "x"}', "[", '{"v": 1, "query": "another"}'])
def test_a_damaged_state_is_told(place: Location, text: str) -> None:
    run(place)
    objects = objects_at(place.child(META))
    objects.remove(STATE)
    with WindowTable(place, clock=TestClock()) as table:
        with pytest.raises(JobError, match=r"state\.json is gone: counting again would double"):
            table.load(WINDOW_MS, 0, "store")
        objects.write(STATE, text.encode(), None)
        with pytest.raises(JobError, match=r"state\.json is damaged"):
            table.load(WINDOW_MS, 0, "store")


def test_a_place_of_somebody_else_is_left_alone(place: Location) -> None:
    objects_at(place.child("topic=T")).write("x.parquet", b"", None)
    with pytest.raises(JobError, match="holds no windows of an earlier run") as raised:
        WindowTable(place).__enter__()
    assert raised.value.exit_code == 2
    assert place.names() == ["topic=T"]
    other = place.child("table")
    write_deltalake(other.uri, pa.table({"x": [1]}), storage_options=other.delta_options())
    with pytest.raises(JobError, match="is a table, and holds no windows"):
        WindowTable(other).__enter__()
    assert META not in other.names()


def test_killed_before_it_had_its_table(place: Location) -> None:
    objects_at(place.child(META)).write("run", b"{}", None)
    with WindowTable(place, clock=TestClock()):
        assert "_delta_log" in place.names()


def test_one_job_at_a_time(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path))
    with WindowTable(place), pytest.raises(InUseError, match=r"process \d+ on .*, metrics"):
        WindowTable(place).__enter__()
    with WindowTable(place):
        pass


def test_a_dry_run_writes_nothing(place: Location) -> None:
    with WindowTable(place, dry=True) as table:
        book = table.load(WINDOW_MS, 0, "store")
        rows = book.apply(0, [event(0), event(5)])
        table.write(book, rows, QueueOffsets({QUEUE: 1}), body_bytes=False, to_send=False)
        table.sent()
    assert place.names() == []


def test_a_run_that_starts_at_the_end_notes_where(place: Location) -> None:
    """What comes before the next run must not be passed over."""
    with WindowTable(place, clock=TestClock()) as table:
        book = table.load(WINDOW_MS, 0, "store")
        table.begin(book, QueueOffsets({QUEUE: 7}))
    with WindowTable(place, clock=TestClock()) as table:
        assert table.load(WINDOW_MS, 0, "store").batch_id == -1
        assert (table.offsets, table.pending) == ({QUEUE: 7}, [])


def test_a_row_as_a_message() -> None:
    row = WindowRow(WindowKey(60_000, "T", ""), "window", Tally(messages=3), 7)
    document = json.loads(row_text(row, 60_000, body_bytes=False))
    assert document["windowStart"] == "1970-01-01T00:01:00Z"
    assert document["windowEnd"] == "1970-01-01T00:02:00Z"
    assert (document["tag"], document["bodyBytes"], document["messages"]) == (None, None, 3)
    assert document["batchId"] == 7


@pytest.mark.parametrize("name", ["startingOffsets", "STARTINGTIMESTAMP"])
def test_where_it_starts_is_no_option_of_the_source(name: str) -> None:
    """It would count the same messages again with each run."""
    settings = JobSettings("n:1", {name: "earliest"})
    with pytest.raises(UsageError, match="use --starting"):
        metrics.check(MetricsOptions(("T",), "x"), settings)


def filled(broker: SyncBroker, topic: str, count: int) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(count):
            producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", number % 4))


def test_where_a_later_run_starts(broker: SyncBroker, topic: str) -> None:
    filled(broker, topic, 8)
    settings = JobSettings(broker.namesrv_addr)
    options = MetricsOptions((topic,), "x")
    ends = metrics.ends_now(options, settings)
    queues = sorted(ends)
    assert list(ends.values()) == [2, 2, 2, 2]
    assert metrics.starting_text(options, settings, QueueOffsets()) == ""
    away = MessageQueue(topic, "elsewhere", 0)
    known = QueueOffsets({queues[0]: 1, queues[1]: 2, away: 9})
    found = json.loads(metrics.starting_text(options, settings, known))
    assert found == {topic: {"broker-a": {"0": 1, "1": 2, "2": 0, "3": 0}}}
    beyond = known.updated({queues[2]: 3})
    with pytest.raises(JobError, match=r"ends at 2, and was counted up to 3, where.*made"):
        metrics.starting_text(options, settings, beyond)
    lenient = JobSettings(broker.namesrv_addr, {"failOnDataLoss": "false"})
    found = json.loads(metrics.starting_text(options, lenient, beyond))
    assert found[topic]["broker-a"]["2"] == 0
    other = known.knowing({queues[1]: Fingerprint(1, 2, 3)})
    with pytest.raises(JobError, match=r"ends at 2, and was counted up to 2, where.*made anew"):
        metrics.starting_text(options, settings, other)
    found = json.loads(metrics.starting_text(options, lenient, other))
    assert found == {topic: {"broker-a": {"0": 1, "1": 0, "2": 0, "3": 0}}}


def test_the_subject_with_groups_finds_topics_that_come_later() -> None:
    plain = MetricsOptions(("a", "b"), "x").source_options(JobSettings(name_server="n:1"))
    assert plain["topic"] == "a,b"
    assert plain["nameServer"] == "n:1"
    grouped = MetricsOptions(("a",), "x", groups=("g-1",)).source_options(JobSettings())
    assert grouped["subscribePattern"] == r"a|%RETRY%g\-1|%DLQ%g\-1"
    assert "topic" not in grouped
