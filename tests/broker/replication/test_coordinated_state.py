"""What is read from the engine is what was written there, or an error that says which key."""

from __future__ import annotations

import pytest

from skylarkmq.broker.replication.failover.coordinated_state import (
    AliveRecord,
    ClusterView,
    CoordinatedStateError,
    MasterRecord,
    ReplicaRecord,
    StateRecord,
    view_of,
)
from skylarkmq.broker.replication.failover.coordination import Entry, Snapshot
from skylarkmq.broker.replication.failover.terms import lineage_of

STATE = StateRecord(5, "b", ("a", "b"), 70, lineage_of([(1, 0), (5, 70)]))
ALIVE = AliveRecord("10.0.0.1:10911", "10.0.0.1:10912", 90, 1)
REPLICA = ReplicaRecord(0, 1 << 30, 1)


def snapshot(**values: bytes) -> Snapshot:
    entries = {
        key.replace("_", "/"): Entry(key.replace("_", "/"), value, place, place)
        for place, (key, value) in enumerate(values.items(), 1)
    }
    return Snapshot(9, entries)


def test_a_view_is_what_was_written() -> None:
    master = MasterRecord("b", 5)
    found = view_of(
        snapshot(
            state=STATE.to_json(),
            master=master.to_json(),
            alive_a=ALIVE.to_json(),
            replicas_a=REPLICA.to_json(),
            other=b"not ours",
        )
    )
    assert found == ClusterView(9, STATE, 1, master, 2, {"a": ALIVE}, {"a": 3}, {"a": REPLICA})


def test_an_empty_engine_is_a_view_of_nothing() -> None:
    assert view_of(Snapshot(3, {})) == ClusterView(3)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("state", b"\xff"),
        ("state", b"[]"),
        ("state", STATE.to_json().replace(b'"term":5', b'"term":"5"')),
        ("state", STATE.to_json().replace(b'"term":5', b'"term":true')),
        ("state", STATE.to_json().replace(b'"term":5', b'"term":6')),
        ("state", STATE.to_json().replace(b'"b","inSync"', b'"c","inSync"')),
        ("state", STATE.to_json().replace(b'["a","b"]', b'["b","a"]')),
        ("state", STATE.to_json().replace(b'["a","b"]', b'["a","b","b"]')),
        ("state", STATE.to_json().replace(b"[[1,0]", b"[[6,0]")),
        ("state", STATE.to_json().replace(b"[[1,0]", b"[7")),
        ("state", STATE.to_json().replace(b'"start":70', b'"start":-1')),
        ("master", b'{"replica":"","term":5}'),
        ("master", b'{"replica":"a"}'),
        ("alive_a", b"{}"),
        ("replicas_a", REPLICA.to_json().replace(b'"format":1', b'"format":0')),
    ],
)
def test_nonsense_is_refused_and_names_its_key(key: str, value: bytes) -> None:
    with pytest.raises(CoordinatedStateError, match=key.replace("_", "/")):
        view_of(snapshot(**{key: value}))
