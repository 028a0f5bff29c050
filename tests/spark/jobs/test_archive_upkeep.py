"""The commands that take care of an archive, as a user runs them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.jobs import archive
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    append,
    committed,
    open_table,
    reports_of,
    rows_of,
    run_of,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three days of two topics, a file each."""
    opened = open_table(tmp_path / "table")
    for day in range(3):
        for topic in ("orders", "%RETRY%g"):
            rows = run_of(topic, 0, day * 5, day * 5 + 5, stored_ms=T0_MS + day * DAY_MS)
            append(opened, rows)
    return tmp_path / "table"


def go(*words: str | Path, code: int = 0) -> dict[str, Any]:
    """Run a command; return its summary."""
    done = CliRunner().invoke(archive.main, [*map(str, words), "--json"])
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.stdout) if code != 2 else {"error": done.output}
    return found


def test_expire(table: Path) -> None:
    dry = go("expire", table, "--before", "2026-01-03", "--topic", "orders", "--dry-run")
    assert (dry["dry_run"], dry["figures"]["messages"], dry["figures"]["files"]) == (True, 10, 2)
    assert len(committed(table)) == 30
    done = go("expire", table, "--before", "2026-01-03", "--topic", "orders")
    assert (done["figures"]["messages"], done["figures"]["files"]) == (10, 2)
    assert done["tables"]["by topic"] == [{"topic": "orders", "messages": 10}]
    assert "a week" in done["notes"][0]
    assert go("expire", table, "--topic", "%RETRY%g")["figures"]["messages"] == 15
    assert committed(table) == [("orders", "broker-a", 0, n) for n in range(10, 15)]
    assert rows_of(table, version=6).num_rows == 30  # time travel


def test_expire_by_age(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: T0_MS + 12 * DAY_MS + 5)
    assert go("expire", table, "--before", "11d")["figures"]["messages"] == 10
    assert {place[3] for place in committed(table)} == set(range(5, 15))


def test_erase_for_good(table: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("k7\n\n k9 \n")
    words = ("erase", table, "--key", "k6", "--keys-file", keys, "--topic", "orders")
    dry = go(*words, "--dry-run")
    assert (dry["figures"]["messages"], dry["figures"]["files_to_look_at"]) == (3, 1)
    done = go(*words)
    assert (done["figures"]["messages"], done["figures"]["files_vacuumed"]) == (3, 1)
    assert len(committed(table)) == 27
    assert not [place for place in committed(table) if place[0] == "orders" and place[3] == 7]
    # Killed after its commit, the same command deletes what it has left.
    kept = go("erase", table, "--where", "queueOffset = 1", "--keep-versions")
    assert kept["figures"]["messages"] == 2 and "vacuum" in kept["notes"][0]
    assert rows_of(table, version=DeltaTable(str(table)).version() - 1).num_rows == 27
    again = go("erase", table, "--where", "queueOffset = 1")
    assert again["figures"]["messages"] == 0 and again["figures"]["files_vacuumed"] >= 2
    with pytest.raises(FileNotFoundError):
        rows_of(table, version=5)


def test_optimize_and_vacuum(table: Path) -> None:
    for number in range(15, 20):
        append(open_table(table), run_of("orders", 0, number, number + 1))
    before = committed(table)
    done = go("optimize", table)
    assert (done["figures"]["files_removed"], done["figures"]["files_added"]) == (6, 1)
    assert done["figures"]["messages"] == 35
    assert (
        go("optimize", table, "--z-order", "queueId", "--z-order", "tags")["figures"]["files"] == 6
    )
    assert go("vacuum", table)["figures"]["files_vacuumed"] == 0
    (orphan,) = reports_of(open_table(table), [run_of("orders", 0, 20, 22)])[0]["files"]
    old = (table / orphan["path"]).stat().st_mtime - 7 * 3600
    os.utime(table / orphan["path"], (old, old))
    assert go("vacuum", table, "--retention", "0")["figures"]["files_vacuumed"] >= 7
    refused = go("vacuum", table, "--retention", "5h", "--full", code=3)
    assert "younger than 6 hours" in refused["figures"]["error"]
    assert go("vacuum", table, "--retention", "6h", "--full")["figures"]["files_vacuumed"] == 1
    assert committed(table) == before


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["expire", "{}"], "--before, --topic, or both"),
        (["expire", "{}", "--before", "soon"], "no date as 2026-01-31 and no age as 90d"),
        (["expire", "{}", "--topic", "none"], "no topic none; it has %RETRY%g, orders"),
        (["erase", "{}"], "--key, --keys-file or --where"),
        (["erase", "{}", "--topic", "orders"], "--key, --keys-file or --where"),
        (["erase", "{}", "--key", "two words"], "a key has no space"),
        (["erase", "{}", "--topic", "none", "--key", "k"], "no topic none"),
    ],
)
def test_refused(table: Path, words: list[str], text: str) -> None:
    assert text in go(*(word.format(table) for word in words), code=2)["error"]
    assert len(committed(table)) == 30


def test_no_archive(tmp_path: Path) -> None:
    for words in (["expire", "--topic", "T"], ["erase", "--key", "k"], ["optimize"], ["vacuum"]):
        error = go(words[0], tmp_path / "none", *words[1:], code=3)["figures"]["error"]
        assert "there is no archive" in error
    assert not (tmp_path / "none").exists()


def test_what_names_no_command_is_a_topic_or_a_table(table: Path) -> None:
    for words in ([table], ["run", table], ["erased", table]):
        error = go(*words, "--name-server", "127.0.0.1:1", "--starting", "noon", code=2)["error"]
        assert "name topics" in error or "--starting" in error
    told = CliRunner().invoke(archive.main, ["--help"]).output
    assert all(command in told for command in ("run", "expire", "erase", "optimize", "vacuum"))
    assert "--starting" in CliRunner().invoke(archive.main, ["orders", "--help"]).output
