"""Members and subscriptions of consumer groups."""

from __future__ import annotations

from typing import Any

from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode
from tests.broker.group_rig import FakeConnection
from tests.support.manual_clock import ManualClock


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.changes: list[tuple[str, list[str]]] = []
        self.manager = ConsumerManager(self.clock, self._changed)

    def _changed(self, connections: Any, group: str) -> None:
        self.changes.append((group, [each.remote_address for each in connections]))

    def beat(
        self,
        connection: FakeConnection,
        *topics: str,
        group: str = "g",
        version: int = 1,
        client_id: str | None = None,
        **members: Any,
    ) -> bool:
        wanted = [
            SubscriptionData(topic=topic, sub_string="*", sub_version=version) for topic in topics
        ]
        data = ConsumerData(
            group_name=group,
            subscription_data_set=wanted,
            consume_type=members.get("consume_type", "CONSUME_PASSIVELY"),
            message_model=members.get("message_model", "CLUSTERING"),
            consume_from_where=members.get("consume_from_where", "CONSUME_FROM_LAST_OFFSET"),
        )
        name = client_id or f"id-{connection.remote_address}"
        peer: Any = connection
        changed = self.manager.register(peer, name, LanguageCode.JAVA, 409, data)
        if changed:
            self.manager.tell(group)
        return changed

    def told(self) -> list[tuple[str, list[str]]]:
        changes, self.changes = self.changes, []
        return changes


def test_a_new_member_is_told_to_all_members_it_included() -> None:
    rig = Rig()
    a, b = FakeConnection("a"), FakeConnection("b")
    assert rig.beat(a, "T")
    assert rig.told() == [("g", ["a"])]
    assert rig.beat(b, "T")
    assert rig.told() == [("g", ["a", "b"])]
    assert not rig.beat(a, "T")
    assert rig.told() == []
    assert rig.manager.client_ids("g") == ["id-a", "id-b"]


def test_the_last_heartbeat_says_what_the_group_subscribes_to() -> None:
    rig = Rig()
    a = FakeConnection("a")
    rig.beat(a, "T", "U")
    rig.told()
    assert rig.beat(a, "U", "V")
    assert rig.told() == [("g", ["a"])]
    assert rig.manager.find_subscription("g", "T") is None
    assert rig.manager.find_subscription("g", "V") is not None
    assert rig.beat(a, "U")
    info = rig.manager.group("g")
    assert info is not None
    assert list(info.subscriptions) == ["U"]


def test_a_newer_expression_replaces_an_older_one_without_a_notice() -> None:
    rig = Rig()
    a = FakeConnection("a")
    rig.beat(a, "T", version=5)
    rig.told()
    assert not rig.beat(a, "T", version=4)
    known = rig.manager.find_subscription("g", "T")
    assert known is not None
    assert known.sub_version == 5
    assert not rig.beat(a, "T", version=6)
    known = rig.manager.find_subscription("g", "T")
    assert known is not None
    assert known.sub_version == 6
    assert rig.told() == []


def test_type_model_and_start_are_those_of_the_last_heartbeat() -> None:
    rig = Rig()
    a, b = FakeConnection("a"), FakeConnection("b")
    rig.beat(a)
    rig.beat(
        b,
        consume_type="CONSUME_ACTIVELY",
        message_model="BROADCASTING",
        consume_from_where="CONSUME_FROM_TIMESTAMP",
    )
    info = rig.manager.group("g")
    assert info is not None
    assert info.consume_type == "CONSUME_ACTIVELY"
    assert info.message_model == "BROADCASTING"
    assert info.consume_from_where == "CONSUME_FROM_TIMESTAMP"


def test_a_client_is_listed_once_while_its_old_connection_lingers() -> None:
    rig = Rig()
    old, new = FakeConnection("old"), FakeConnection("new")
    rig.beat(old, client_id="me")
    rig.beat(new, client_id="me")
    assert rig.manager.client_ids("g") == ["me"]
    old.close("peer")
    assert rig.manager.client_ids("g") == ["me"]


def test_who_closes_leaves_all_its_groups_and_the_others_hear() -> None:
    rig = Rig()
    a, b = FakeConnection("a"), FakeConnection("b")
    rig.beat(a, group="g")
    rig.beat(a, group="h")
    rig.beat(b, group="g")
    rig.told()
    a.close("peer")
    assert rig.told() == [("g", ["b"])]
    assert rig.manager.group("h") is None
    assert rig.manager.client_count == 1
    b.close("peer")
    assert rig.told() == []
    assert (list(rig.manager.groups), rig.manager.client_count) == ([], 0)


def test_who_unregisters_leaves_one_group() -> None:
    rig = Rig()
    a, b = FakeConnection("a"), FakeConnection("b")
    for each in (a, b):
        rig.beat(each, group="g")
    rig.beat(a, group="h")
    rig.told()
    rig.manager.unregister(a, "g")  # type: ignore[arg-type]
    assert rig.told() == [("g", ["b"])]
    assert list(rig.manager.groups_of(a)) == ["h"]  # type: ignore[arg-type]
    rig.manager.unregister(a, "g")  # type: ignore[arg-type]
    rig.manager.unregister(a, "unknown")  # type: ignore[arg-type]
    rig.manager.unregister(FakeConnection(), "g")  # type: ignore[arg-type]
    assert rig.told() == []
    rig.manager.unregister(a, "h")  # type: ignore[arg-type]
    assert a.listeners == []


def test_silent_members_are_dropped_and_the_others_hear() -> None:
    rig = Rig()
    a, b = FakeConnection("a"), FakeConnection("b")
    rig.beat(a, group="g")
    rig.beat(a, group="h")
    rig.clock.advance(100)
    rig.beat(b, group="g")
    rig.beat(a, group="h")
    rig.told()
    rig.clock.advance(20)
    assert rig.manager.expire(120_000) == set()
    rig.clock.advance(1)
    assert rig.manager.expire(120_000) == set(), "a still belongs to h"
    assert rig.told() == [("g", ["b"])]
    rig.clock.advance(100)
    assert rig.manager.expire(120_000) == {a, b}
    assert (a.listeners, b.listeners) == ([], [])
    assert list(rig.manager.groups) == []


def test_a_step_of_the_wall_clock_silences_nobody() -> None:
    rig = Rig()
    rig.beat(FakeConnection("a"))
    rig.clock.step_wall(100_000)
    assert rig.manager.expire(120_000) == set()
    assert rig.manager.client_ids("g") == ["id-a"]


def test_a_connection_that_is_gone_is_not_taken_in() -> None:
    rig = Rig()
    a = FakeConnection("a")
    a.close("peer")
    assert not rig.beat(a, "T")
    assert rig.manager.group("g") is None
    assert rig.manager.client_count == 0


def test_unknown_groups_allocate_nothing() -> None:
    manager = Rig().manager
    assert manager.group("no") is None
    assert manager.client_ids("no") == []
    assert manager.find_subscription("no", "T") is None
    assert list(manager.groups) == []
