"""Each rule of the checker is seen to hold and seen to be broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failover.checker import Verdict, check
from tests.failover.history import History, Operation, digest, read_history

Q = "proof/0"


def acked(body: str, offset: int, start: float, end: float) -> Operation:
    return Operation("send", "producer", start, end, "acked", Q, offset, body)


def unknown(body: str, start: float, end: float, tries: int = 1) -> Operation:
    return Operation("send", "producer", start, end, "unknown", body=body, tries=tries)


def read(body: str, offset: int, at: float, *, final: bool = False, who: str = "c") -> Operation:
    return Operation("read", who, at, at, "read", Q, offset, body, final=final)


def fault(kind: str, start: float, end: float) -> Operation:
    return Operation("fault", kind, start, end, "done")


# Two acknowledged sends, one of which nobody knows the end; a consumer read them; so did the end.
GOOD = [
    acked("a", 0, 1, 2),
    read("a", 0, 2.5),
    unknown("b", 3, 4),
    acked("c", 2, 4.5, 5),
    read("b", 1, 5.5),
    read("c", 2, 5.6),
    *(read(body, offset, 10, final=True, who="end") for offset, body in enumerate("abc")),
]


def without(*left_out: Operation) -> list[Operation]:
    return [operation for operation in GOOD if operation not in left_out]


def end_reads(*pairs: tuple[str, int]) -> list[Operation]:
    """The good history with another last reading."""
    begun = [operation for operation in GOOD if not operation.final]
    return begun + [read(body, at, 10, final=True, who="end") for body, at in pairs]


def test_a_good_history() -> None:
    verdict = check(GOOD, consumers=["c"])
    assert verdict.is_good, str(verdict)
    assert (verdict.acked, verdict.unknown, verdict.read) == (2, 1, 6)
    assert (verdict.kept, verdict.unknown_kept) == (3, 1)


def test_a_send_that_nobody_knows_of_may_be_nowhere() -> None:
    history = [acked("a", 0, 1, 2), unknown("b", 3, 4), read("a", 0, 9, final=True)]
    assert check(history).is_good


def test_a_send_with_tries_may_be_there_once_for_each() -> None:
    history = [unknown("b", 3, 4, tries=2), *(read("b", n, 9, final=True) for n in range(2))]
    assert check(history).is_good
    again = [*history, read("b", 2, 9, final=True)]
    assert set(check(again).counts) == {"too-often"}


BAD = {
    "lost": [*end_reads(("a", 0)), acked("d", 3, 6, 7)],
    "changed": [acked("a", 0, 1, 2), unknown("b", 1, 2), read("b", 0, 9, final=True)],
    "acked-twice": [*GOOD, acked("d", 2, 4.6, 5.1)],
    "differs": [*GOOD, read("b", 0, 6, who="old replica")],
    "vanished": end_reads(("a", 0), ("b", 1)),
    "read-twice": [*GOOD, read("a", 0, 10, final=True, who="end")],
    "hole": end_reads(("a", 0), ("c", 2)),
    "too-often": [*GOOD, read("b", 3, 10, final=True, who="end")],
    "invented": [*GOOD, read("z", 3, 10, final=True, who="end")],
    "early": [*GOOD, read("c", 2, 4.4, who="seer")],
    "disorder": [
        acked("a", 1, 1, 2),
        acked("b", 0, 3, 4),
        *(read(body, offset, 9, final=True) for offset, body in enumerate("ba")),
    ],
    "passed over": without(read("a", 0, 2.5)),
    "undelivered": without(read("c", 2, 5.6)),
    "late": [*GOOD, fault("kill", 2.2, 4)],
}


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_is_seen_to_be_broken(rule: str) -> None:
    consumers = ["c"] if rule in ("passed over", "undelivered") else []
    verdict = check(BAD[rule], consumers=consumers, bounds={"kill": 2})
    assert rule in verdict.counts, str(verdict)
    assert rule in str(verdict)
    others = {"lost", "vanished", "changed", "acked-twice", "hole"}  # one thing is seen by several
    assert set(verdict.counts) <= {rule, *others}


def test_a_message_that_one_consumer_of_two_passed_over_is_named_with_it() -> None:
    verdict = check([*GOOD, read("c", 2, 7, who="d")], consumers=["c", "d"])
    assert verdict.counts == {"passed over": 1}
    assert "d never got a at proof/0:0" in str(verdict)


def test_a_read_that_does_not_say_where_counts_as_a_delivery_alone() -> None:
    again = Operation("read", "c", 6, 6, "read", body="a")
    history = [*without(read("a", 0, 2.5)), again]
    assert check(history, consumers=["c"]).is_good
    assert check([*GOOD, Operation("read", "c", 6, 6, "read", body="c")]).is_good


def test_what_was_not_read_at_the_end_is_no_loss() -> None:
    assert check([acked("a", 0, 1, 2), read("b", 0, 3)], is_over=False).counts == {"invented": 1}


def test_sends_at_one_time_have_no_order() -> None:
    history = [
        acked("a", 1, 1, 4),
        acked("b", 0, 3, 5),
        *(read(body, offset, 9, final=True) for offset, body in enumerate("ba")),
    ]
    assert check(history).is_good


def test_bodies_must_tell_sends_apart() -> None:
    with pytest.raises(ValueError, match="one body"):
        check([acked("a", 0, 1, 2), unknown("a", 3, 4)])


@pytest.mark.parametrize(
    ("start", "end", "gap"),
    [
        (2.5, 2.6, 6.0),  # in the middle of it
        (7.9, 8.5, 6.0),  # its last moment
        (1.0, 9.0, 6.0),  # all of it
        (1.1, 1.5, 1.0),  # before it
        (0.5, 1.5, 1.0),  # from before the first acknowledgement on
        (9.5, 20.0, 11.0),  # none ever after: until the end of the fault
    ],
)
def test_unavailability_is_the_longest_gap_that_touches_the_fault(
    start: float, end: float, gap: float
) -> None:
    history = [acked(str(n), n, at - 0.1, at) for n, at in enumerate([1, 2, 8, 9])]
    verdict = check([*history, fault("kill", start, end)])
    assert verdict.gaps == {"kill": [pytest.approx(gap)]}


def test_violations_are_counted_and_the_first_are_kept() -> None:
    verdict = Verdict()
    for number in range(100):
        verdict.violation("lost", str(number))
    assert verdict.counts == {"lost": 100}
    assert len(verdict.examples["lost"]) == 10


def test_a_history_comes_back_from_its_file(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    for operation in [*GOOD, fault("kill", 2.2, 4)]:
        history.add(operation)
    history.close()
    assert list(read_history(history.path)) == [*GOOD, fault("kill", 2.2, 4)]
    assert (history.acked, history.unknown, history.read) == (2, 1, 6)
    assert history.longest_gap == 3  # from the first acknowledgement to the second
    assert history.gap(11) == 6


def test_a_line_that_is_no_operation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"op":"send"}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl:1"):
        list(read_history(path))


def test_bodies_that_differ_in_a_bit_have_other_digests() -> None:
    assert digest(b"a") == digest(b"a")
    assert digest(b"a") != digest(b"b")
