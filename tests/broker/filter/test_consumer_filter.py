"""The table of filters: registration, death, bounds, bitmaps, and the file that RocketMQ reads."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.filter import consumer_filter
from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.properties import encode_properties
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep
from tests.support.workers import rest

GOLDEN = Path(__file__).parents[2] / "golden" / "golden-store.json"
DAY_S = 86_400
EXT: dict[str, Any] = {"enable_consume_queue_ext": True}


class Rig(StoreRig):
    """A store and the table beside it."""

    def __init__(self, files: CrashDisk | None = None, **config: Any) -> None:
        super().__init__(files, **EXT)
        values = {"enable_property_filter": True, "enable_calc_filter_bit_map": True, **config}
        self.config = BrokerConfig(store=self.store.config, **values)
        self.filters = ConsumerFilterManager(
            self.config,
            self.files,
            TableWriter(self.files, self.workers.tables),
            self.clock,
            self.store,
        )

    def start(self) -> Rig:
        super().start()
        self.filters.load()
        self.filters.start()
        return self

    def beat(self, group: str, version: int = 1, **topics: str) -> None:
        self.filters.register(group, [sql(topic, text, version) for topic, text in topics.items()])

    async def save(self) -> dict[str, Any]:
        """Let the interval pass; what the file says then."""
        self.clock.advance(consumer_filter.FLUSH_INTERVAL_S)
        await rest(self.workers)
        text = self.files.read_all(self.path)
        table: dict[str, Any] = json.loads(text)["filterDataByTopic"]
        return table

    @property
    def path(self) -> Path:
        return self.store.paths.config / "consumerFilter.json"

    def message(self, **properties: str) -> None:
        self.put("T", 0, b"body", properties=encode_properties(properties).encode())

    def wanted(self, group: str) -> list[int]:
        """Queue offsets that a group gets of T, in bitmaps and records alike."""
        data = self.filters.get("T", group)
        assert data is not None
        found: list[int] = []
        offset = 0
        while offset < self.store.max_offset("T", 0):
            result = self.store.get_message("T", 0, offset, 1, None, data.record_filter)
            offset = result.next_begin_offset
            if result.count:
                found.append(offset - 1)
        return found


def sql(topic: str, text: str, version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=text, expression_type=kind, sub_version=version)


def _text(rig: Rig, topic: str, group: str) -> str | None:
    data = rig.filters.get(topic, group)
    return None if data is None else data.expression.text


# Registration


async def test_newer_versions_replace_older_ones_alone() -> None:
    rig = Rig().start()
    rig.beat("g", 5, T="a = 1")
    rig.beat("g", 5, T="a = 2")
    rig.beat("g", 4, T="a = 3")
    assert _text(rig, "T", "g") == "a = 1"
    rig.beat("g", 6, T="a = 4")
    assert _text(rig, "T", "g") == "a = 4"
    rig.beat("g", 7, T="a = ")
    assert _text(rig, "T", "g") is None, "the client is told at its next pull"
    assert rig.filters.count == 0


async def test_a_group_that_comes_back_with_an_older_clock_is_heard() -> None:
    rig = Rig().start()
    rig.beat("g", 1000, T="a = 1")
    rig.filters.unregister("g")
    rig.beat("g", 900, T="a = 2")
    data = rig.filters.get("T", "g")
    assert data is not None
    assert (data.expression.text, data.client_version, data.is_dead) == ("a = 2", 900, False)


@pytest.mark.parametrize("kind", ["TAG", "", "XPATH"])
async def test_other_kinds_are_not_taken(kind: str) -> None:
    rig = Rig().start()
    rig.filters.register("g", [sql("T", "a = 1", kind=kind), sql("U", "")])
    assert rig.filters.count == 0


async def test_nothing_is_taken_while_filters_are_off() -> None:
    rig = Rig(enable_property_filter=False).start()
    rig.beat("g", T="a = 1")
    assert rig.filters.count == 0


async def test_a_topic_that_is_left_out_dies_and_comes_back() -> None:
    rig = Rig().start()
    rig.beat("g", T="a = 1", U="b = 1")
    born = rig.filters.get("U", "g")
    rig.clock.advance(5)
    rig.beat("g", T="a = 1")
    dead = rig.filters.get("U", "g")
    assert dead is born and dead is not None and dead.is_dead
    assert rig.filters.counts() == {"live": 1, "dead": 1}
    rig.beat("g", T="a = 1", U="b = 1")
    assert not dead.is_dead
    rig.filters.unregister("g")
    assert rig.filters.counts() == {"live": 0, "dead": 2}
    rig.beat("g", 2, T="a = 1", U="b = 1")
    assert not dead.is_dead and rig.filters.get("U", "g") is born


async def test_the_dead_leave_after_their_time() -> None:
    rig = Rig().start()
    rig.beat("g", T="a = 1")
    rig.beat("h", T="b = 1")
    rig.filters.unregister("g")
    rig.clock.pass_time(DAY_S - 20)
    assert set((await rig.save())["T"]["groupFilterData"]) == {"g", "h"}
    rig.clock.advance(20)
    assert set((await rig.save())["T"]["groupFilterData"]) == {"h"}
    assert rig.filters.get("T", "g") is None


async def test_a_deleted_topic_takes_the_dead_along() -> None:
    rig = Rig().start()
    rig.beat("g", T="a = 1", U="b = 1")
    rig.beat("h", T="c = 1")
    rig.filters.unregister("h")
    rig.filters.forget_topic("T")
    rig.filters.forget_topic("unknown")
    assert (_text(rig, "T", "g"), _text(rig, "T", "h")) == ("a = 1", None)
    rig.filters.unregister("g")
    for topic in "TU":
        rig.filters.forget_topic(topic)
    assert rig.filters.count == 0 and not rig.filters._by_topic and not rig.filters._by_group
    assert (await rig.save()) == {}


async def test_the_table_is_bounded_and_the_dead_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filter, "FILTERS_MAX", 3)
    rig = Rig().start()
    for group in "abcd":
        rig.beat(group, T="x = 1")
    assert rig.filters.count == 3 and _text(rig, "T", "d") is None
    rig.filters.unregister("b")
    rig.beat("d", T="x = 1")
    assert [group for group in "abcd" if _text(rig, "T", group)] == ["a", "c", "d"]


async def test_the_characters_of_all_expressions_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_filter, "CHARACTERS_MAX", 100)
    rig = Rig().start()
    for number in range(5):
        rig.beat(f"g{number}", T=f"name{number} = '{'x' * 20}'")
    assert rig.filters.count == 3
    for number in range(5):
        rig.filters.unregister(f"g{number}")
        rig.filters.forget_topic("T")
    assert rig.filters._characters == 0


# Bitmaps


async def test_a_bitmap_has_the_bits_of_those_who_match() -> None:
    rig = Rig().start()
    rig.beat("CGSQL", T="n > 8")
    rig.beat("other", T="n > 100")
    bits = rig.filters.bloom.bits_of
    both = bits("CGSQL", "T").mask | bits("other", "T").mask
    for value, mask in ((5, 0), (9, bits("CGSQL", "T").mask), (200, both)):
        bitmap = rig.filters.bitmap_of("T", f"n\x01{value}".encode())
        assert bitmap == mask.to_bytes(14, "little")
    assert rig.filters.bitmap_of("nobody's", b"n\x019") == b""


async def test_bitmaps_spare_reads_and_lose_nothing() -> None:
    rig = Rig().start()
    rig.message(n="9")  # before anybody filters
    rig.clock.advance(1)
    rig.beat("g", T="n > 8")
    rig.clock.advance(1)
    for number in range(20):
        rig.message(n=str(number))
    rig.clock.advance(1)
    rig.beat("late", T="n < 3")
    expected = [0, *range(10, 21)]
    assert rig.wanted("g") == expected
    assert rig.store.stats.filter_examined < 40 and rig.store.stats.filter_skipped > 0
    assert rig.wanted("late") == [1, 2, 3], "its bits are in no bitmap"


async def test_a_changed_expression_does_not_trust_bitmaps_of_the_old_one() -> None:
    rig = Rig().start()
    rig.beat("g", 1, T="n = 1")
    rig.clock.advance(1)
    rig.message(n="2")
    rig.clock.advance(1)
    rig.beat("g", 2, T="n = 2")
    assert rig.wanted("g") == [0]


async def test_a_clock_that_was_set_back_leaves_no_gap() -> None:
    rig = Rig().start()
    rig.beat("other", T="n = 5")
    rig.clock.advance(100)
    rig.message(n="2")
    rig.clock.step_wall(-50)
    rig.beat("g", T="n = 2")
    assert rig.wanted("g") == [0]


async def test_a_group_that_comes_back_finds_its_bits() -> None:
    rig = Rig().start()
    rig.beat("g", T="n = 2")
    rig.clock.advance(1)
    rig.filters.unregister("g")
    for number in range(4):
        rig.message(n=str(number))
    rig.beat("g", T="n = 2")
    assert rig.wanted("g") == [2]
    assert rig.store.stats.filter_skipped > 0


async def test_filters_that_cost_too_much_for_every_message_get_no_bitmaps() -> None:
    rig = Rig().start()
    rig.beat("g", T=" OR ".join(f"n = {number}" for number in range(100)))
    assert rig.filters.bitmap_of("T", b"n\x011") != b""
    rig.beat("h", T=" OR ".join(f"n = {number}" for number in range(100)))
    assert rig.filters.bitmap_of("T", b"n\x011") == b""
    rig.filters.unregister("g")
    rig.filters.forget_topic("T")
    assert rig.filters.bitmap_of("T", b"n\x011") != b""


# The file


async def test_the_file_is_rocketmqs() -> None:
    golden = json.loads(GOLDEN.read_text())["configFiles"]["consumerFilter"]
    rig = Rig()
    rig.files.make_folder(rig.path.parent)
    rig.files.replace(rig.path, golden.encode(), backup=False)
    rig.start()
    data = rig.filters.get("TopicTest", "CGSQL")
    assert data is not None and data.expression.text == "n > 8 AND TAGS = 'Tag1'"
    assert data.is_dead
    rig.filters.register("CGSQL", [sql("TopicTest", data.expression.text, data.client_version)])
    rig.filters.unregister("CGSQL")
    row = (await rig.save())["TopicTest"]["groupFilterData"]["CGSQL"]
    expected = json.loads(golden)["filterDataByTopic"]["TopicTest"]
    assert row.keys() == expected["groupFilterData"]["CGSQL"].keys()
    times = {"deadTime": row["deadTime"], "bornTime": row["bornTime"]}
    assert row == {**expected["groupFilterData"]["CGSQL"], **times}
    assert list(row) == list(expected["groupFilterData"]["CGSQL"]), "in the order of Java's writer"


async def test_a_clean_stop_keeps_the_birth() -> None:
    rig = Rig().start()
    rig.beat("g", T="n = 2")
    born = rig.filters.get("T", "g")
    rig.clock.advance(3)
    rig.message(n="1")
    await rig.save()
    rig.stop()
    again = Rig(rig.files)
    again.clock.advance(1000)
    again.start()
    data = again.filters.get("T", "g")
    assert data is not None and born is not None
    assert data.born_time == born.born_time and data.is_dead
    assert again.wanted("g") == [] and again.store.stats.filter_skipped == 1
    again.beat("g", T="n = 2")
    assert not data.is_dead


async def test_after_a_crash_no_bitmap_is_trusted() -> None:
    """The file says `n = 1`; the bitmaps were computed for `n = 2`, which came later."""
    rig = Rig().start()
    rig.beat("g", 1, T="n = 1")
    await rig.save()
    rig.beat("g", 2, T="n = 2")
    rig.clock.advance(1)
    rig.message(n="1")
    rig.clock.advance(1)
    await rest(rig.workers)  # the log is on the disk
    rig.store._checkpoint()
    await rest(rig.workers)
    again = Rig(rig.files.crash(CrashState(Keep.KILL), Random(1)))
    again.clock.advance(100)
    again.start()
    again.beat("g", 1, T="n = 1")  # a client that went back
    queue = again.store.queues.open("T", 0)
    assert list(again.store.queues.bitmaps(queue, again.store.queues.stored_units(queue, 0, 1)))
    assert again.wanted("g") == [0]


async def test_other_bloom_parameters_and_expressions_that_are_none_leave_the_file() -> None:
    rig = Rig().start()
    rig.beat("g", T="n = 1")
    await rig.save()
    rig.stop()
    again = Rig(rig.files).start()
    assert _text(again, "T", "g") == "n = 1"
    table = await again.save()
    again.stop()
    table["T"]["groupFilterData"]["g"]["expression"] = "n = 1 + 1"
    rig.files.replace(rig.path, json.dumps({"filterDataByTopic": table}).encode(), backup=False)
    third = Rig(rig.files).start()
    assert third.filters.count == 0
    assert (await third.save()) == {}, (
        "a Java broker must not trust what has no bits in the bitmaps"
    )
    third.beat("g", T="n = 1")
    await third.save()
    third.stop()
    assert Rig(rig.files, max_error_rate_of_bloom_filter=10).start().filters.count == 0


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "../x"},
        {"consumerGroup": ""},
        {"bloomFilterData": None},
        {"expressionType": "TAG"},
    ],
)
async def test_rows_that_are_none_are_left_out(change: dict[str, Any]) -> None:
    rig = Rig().start()
    rig.beat("g", T="n = 1")
    table = await rig.save()
    table["T"]["groupFilterData"]["g"].update(change)
    rig.stop()
    rig.files.replace(rig.path, json.dumps({"filterDataByTopic": table}).encode(), backup=False)
    assert Rig(rig.files).start().filters.count == 0
