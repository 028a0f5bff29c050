"""Clients of producer groups."""

from __future__ import annotations

from typing import Any

from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.protocol.codes import LanguageCode
from tests.broker.group_rig import FakeConnection
from tests.support.manual_clock import ManualClock


def beat(manager: ProducerManager, connection: Any, group: str = "p") -> None:
    manager.register(connection, "id", LanguageCode.PYTHON, 409, group)


def test_clients_come_and_go() -> None:
    manager = ProducerManager(ManualClock())
    a, b = FakeConnection("a"), FakeConnection("b")
    beat(manager, a)
    beat(manager, a)
    beat(manager, b)
    beat(manager, b, "q")
    assert list(manager.clients("p")) == [a, b]
    assert len(a.listeners) == 1
    manager.unregister(a, "p")  # type: ignore[arg-type]
    manager.unregister(a, "p")  # type: ignore[arg-type]
    assert a.listeners == []
    b.close("peer")
    assert list(manager.groups) == []
    assert manager.client_count == 0


def test_silent_clients_are_dropped() -> None:
    clock = ManualClock()
    manager = ProducerManager(clock)
    a, b = FakeConnection("a"), FakeConnection("b")
    beat(manager, a)
    beat(manager, b)
    beat(manager, b, "q")
    clock.advance(60)
    beat(manager, b, "q")
    clock.advance(61)
    assert manager.expire(120_000) == {a}
    assert list(manager.groups_of(b)) == ["q"]  # type: ignore[arg-type]


def test_unknown_groups_and_closed_connections_allocate_nothing() -> None:
    manager = ProducerManager(ManualClock())
    gone = FakeConnection()
    gone.close("peer")
    beat(manager, gone)
    assert dict(manager.clients("p")) == {}
    assert list(manager.groups) == []


def test_a_client_is_found_by_its_id_over_its_newest_connection() -> None:
    clock = ManualClock()
    manager = ProducerManager(clock)
    old, new, other = (FakeConnection(name) for name in ("a", "b", "c"))
    beat(manager, old)
    beat(manager, new)
    beat(manager, new, "q")
    manager.register(other, "other", LanguageCode.JAVA, 409, "p")  # type: ignore[arg-type]
    assert manager.find_client("id") is new
    assert manager.find_client("other") is other
    assert manager.find_client("nobody") is None
    old.close("peer")
    assert manager.find_client("id") is new, "an old connection takes nothing along"
    manager.unregister(new, "p")  # type: ignore[arg-type]
    assert manager.find_client("id") is new, "it still is in another group"
    manager.unregister(new, "q")  # type: ignore[arg-type]
    assert manager.find_client("id") is None
    manager.register(other, "renamed", LanguageCode.JAVA, 409, "p")  # type: ignore[arg-type]
    assert manager.find_client("other") is None
    assert manager.find_client("renamed") is other
    clock.advance(121)
    manager.expire(120_000)
    assert manager.find_client("renamed") is None
