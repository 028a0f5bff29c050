"""What the metrics tell of a master's slaves."""

from __future__ import annotations

from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.replication_families import replication_families
from skylarkmq.broker.replication.ha.ha_server import HaServer
from tests.broker.replication.ha_rig import MasterRig


def series(server: HaServer | None) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("slave", "")): sample.value
        for family in replication_families(server, FamilyMaker({}))
        for sample in family.samples
    }


def test_slaves_with_what_they_lack_and_were_sent() -> None:
    master = MasterRig()
    master.start()
    master.put(body=b"x" * 1000)
    master.connect()  # has not said where it begins
    for host, offset in (("192.0.2.1", 1), ("192.0.2.2", 500), ("192.0.2.2", 900)):
        master.follow(offset, host)
    end = master.store.commit_log.wrote_offset
    assert series(master.server) == {
        ("skylarkmq_slaves", ""): 3,
        ("skylarkmq_slave_behind_bytes", "192.0.2.1"): end - 1,
        ("skylarkmq_slave_behind_bytes", "192.0.2.2"): end - 500,
        ("skylarkmq_slave_sent_bytes_total", ""): 3 * end - 1401,
    }


def test_without_slaves_and_on_a_slave() -> None:
    master = MasterRig()
    assert series(master.server) == {
        ("skylarkmq_slaves", ""): 0,
        ("skylarkmq_slave_sent_bytes_total", ""): 0,
    }
    assert series(None) == {}
