"""Metrics of transactions, as a scrape shows them."""

from __future__ import annotations

from skylarkmq.broker.broker_metrics import transaction_families
from skylarkmq.broker.metrics.families import FamilyMaker
from tests.broker.transaction_rig import ROLLBACK, TransactionRig


def figures(rig: TransactionRig) -> dict[str, float]:
    """Values that are not zero, by name and outcome."""
    return {
        sample.name.removeprefix("skylarkmq_transaction").lstrip("s_")
        + "".join(f"/{value}" for name, value in sample.labels.items() if name == "outcome"): (
            sample.value
        )
        for family in transaction_families(rig.ledger, FamilyMaker({"broker": "b"}))
        for sample in family.samples
        if sample.value and not sample.name.endswith("_created")
    }


async def test_each_way_of_a_transaction_is_counted() -> None:
    rig = await TransactionRig(transaction_check_interval=10_000, transaction_check_max=1).go()
    rig.producer()
    assert figures(rig) == {}
    halves = [rig.half(b"%d" % number) for number in range(4)]
    rig.half(b"later", b"CHECK_IMMUNITY_TIME_IN_SECONDS\x0115")
    rig.half(b"nobody's", born_timestamp=0)
    await rig.end(halves[0])
    await rig.end(halves[0])
    await rig.end(halves[1], ROLLBACK)
    rig.producer("192.0.2.2:1").close("test")
    await rig.advance(10.5)
    assert figures(rig) == {
        "open": 4, "ended_total/committed": 1, "ended_total/rolled_back": 1,
        "checks_total/asked": 3, "postponed_total": 1, "verdicts_refused_total": 1,
    }  # fmt: skip
    await rig.advance(10)
    assert figures(rig)["ended_total/given_up"] == 3
    assert figures(rig)["open"] == 1
