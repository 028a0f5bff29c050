"""Summaries as people and programs read them."""

from __future__ import annotations

import json

import pytest

from skylarkmq.spark.jobs.reporting import (
    DIFFERENCES,
    FAILED,
    INTERRUPTED,
    TEXT_ROWS_MAX,
    Cell,
    Summary,
    Table,
    show,
)


def test_text() -> None:
    table = Table("by topic", ("topic", "first_offset"), [("a", 1), ("longer", None)])
    summary = Summary(
        "dlq", {"rows": 1234567, "took_s": 0.25}, (table,), ("Look there.",), DIFFERENCES, True
    )
    assert summary.as_text().splitlines() == [
        "dlq: differences (dry run, nothing was written)",
        "  rows    1,234,567",
        "  took s  0.25",
        "",
        "by topic",
        "  topic   first offset",
        "  a                  1",
        "  longer             -",
        "",
        "Look there.",
    ]


def test_json_has_all_rows() -> None:
    rows: list[tuple[Cell, ...]] = [(number,) for number in range(TEXT_ROWS_MAX + 7)]
    summary = Summary("x", {}, (Table("t", ("n",), rows),))
    assert len(json.loads(summary.as_json())["tables"]["t"]) == len(rows)
    assert summary.as_text().endswith("... and 7 more; --json has them all")


def test_an_empty_table_says_so() -> None:
    assert Summary("x", {}, (Table("t", ("n",), []),)).as_text().endswith("(none)")


@pytest.mark.parametrize(
    ("code", "outcome"), [(0, "done"), (FAILED, "failed"), (INTERRUPTED, "interrupted")]
)
def test_outcome(code: int, outcome: str) -> None:
    assert json.loads(Summary("x", {}, exit_code=code).as_json())["outcome"] == outcome


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "yes"), (12.3456, "12.3"), (0.1234, "0.123"), (1e6, "1,000,000.0")],
)
def test_show(value: object, text: str) -> None:
    assert show(value) == text


def test_a_cell_can_not_drive_the_terminal() -> None:
    assert show("a\x1b[2Jb\n") == "a?[2Jb?"
    assert len(show("x" * 1000)) == 60
