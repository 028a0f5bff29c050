"""The table of filters: registration, ends, bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.broker.filter import consumer_filter
from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.protocol.bodies.group import SubscriptionData
from tests.support.live_broker import broker_config
from tests.support.manual_clock import ManualClock


class Rig:
    """The table with a clock that stands."""

    def __init__(self, *, enable_property_filter: bool = True) -> None:
        config = broker_config(Path("/nowhere"), enable_property_filter=enable_property_filter)
        self.filters = ConsumerFilterManager(config, ManualClock())

    def beat(self, group: str, version: int = 1, **topics: str) -> None:
        self.filters.register(group, [sql(topic, text, version) for topic, text in topics.items()])


def sql(topic: str, text: str, version: int = 1, kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=text, expression_type=kind, sub_version=version)


def _text(rig: Rig, topic: str, group: str) -> str | None:
    data = rig.filters.get(topic, group)
    return None if data is None else data.expression.text


# Registration


def test_newer_versions_replace_older_ones_alone() -> None:
    rig = Rig()
    rig.beat("g", 5, T="a = 1")
    rig.beat("g", 5, T="a = 2")
    rig.beat("g", 4, T="a = 3")
    assert _text(rig, "T", "g") == "a = 1"
    rig.beat("g", 6, T="a = 4")
    assert _text(rig, "T", "g") == "a = 4"
    rig.beat("g", 7, T="a = ")
    assert _text(rig, "T", "g") is None, "the client is told at its next pull"
    assert rig.filters.count == 0


def test_a_group_that_comes_back_with_an_older_clock_is_heard() -> None:
    rig = Rig()
    rig.beat("g", 1000, T="a = 1")
    rig.filters.unregister("g")
    rig.beat("g", 900, T="a = 2")
    data = rig.filters.get("T", "g")
    assert data is not None
    assert (data.expression.text, data.client_version) == ("a = 2", 900)


@pytest.mark.parametrize("kind", ["TAG", "", "XPATH"])
def test_other_kinds_are_not_taken(kind: str) -> None:
    rig = Rig()
    rig.filters.register("g", [sql("T", "a = 1", kind=kind), sql("U", "")])
    assert rig.filters.count == 0


def test_nothing_is_taken_while_filters_are_off() -> None:
    rig = Rig(enable_property_filter=False)
    rig.beat("g", T="a = 1")
    assert rig.filters.count == 0


def test_a_filter_goes_with_its_topic_and_with_its_group() -> None:
    rig = Rig()
    rig.beat("g", T="a = 1", U="b = 1")
    rig.beat("h", U="c = 1")
    rig.beat("g", T="a = 1")
    assert (_text(rig, "U", "g"), rig.filters.count) == (None, 2)
    rig.beat("g", T="a = 1", U="b = 1")
    assert [data.topic for data in rig.filters.of_group("g")] == ["T", "U"]
    rig.filters.unregister("g")
    rig.filters.unregister("unknown")
    assert not rig.filters.of_group("g") and rig.filters.count == 1
    rig.filters.unregister("h")
    assert not rig.filters._by_group


def test_the_table_is_bounded_and_who_goes_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filter, "FILTERS_MAX", 3)
    rig = Rig()
    for group in "abcd":
        rig.beat(group, T="x = 1")
    assert rig.filters.count == 3 and _text(rig, "T", "d") is None
    rig.filters.unregister("b")
    rig.beat("d", T="x = 1")
    assert [group for group in "abcd" if _text(rig, "T", group)] == ["a", "c", "d"]


def test_the_characters_of_all_expressions_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_filter, "CHARACTERS_MAX", 100)
    rig = Rig()
    for number in range(5):
        rig.beat(f"g{number}", T=f"name{number} = '{'x' * 20}'")
    assert rig.filters.count == 3
    for number in range(5):
        rig.filters.unregister(f"g{number}")
    assert rig.filters._characters == 0
