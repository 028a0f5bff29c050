"""A night's run goes on whatever its parts do, and tells how each ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nightly import Outcome, Part, run, table

MAKEFILE = """
args:
	@echo '[$(ARGS)]'
good:
	@echo 'SKIPPED [2] tests/a.py: no Maven here'
	@echo '== 7 passed, 2 skipped in 1.20s =='; : $(ARGS)
bad:
	@echo broken; exit 3
lacking:
	@echo 'no namespaces here'; exit 2
hanging:
	@echo begun; sleep 1000 & echo $$! > pid; wait
"""


def outcome(tree: Path, part: Part) -> Outcome:
    (tree / "Makefile").write_text(MAKEFILE)
    return run(part, tree, tree=tree)


def test_a_part_that_passes_tells_its_closing_line_and_what_it_skipped(tmp_path: Path) -> None:
    found = outcome(tmp_path, Part("good", 1, "-rs"))
    assert (found.state, found.words) == ("passed", "7 passed, 2 skipped in 1.20s")
    assert found.is_good and found.skipped == {"no Maven here": 2}
    assert "passed" in (tmp_path / "good.log").read_text()


def test_a_part_has_its_own_arguments_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -- ARGS=--only")
    monkeypatch.setenv("MAKELEVEL", "1")
    assert outcome(tmp_path, Part("args", 1)).words == "[]"
    assert outcome(tmp_path, Part("args", 1, "-rs")).words == "[-rs]"
    assert outcome(tmp_path, Part("bad", 1)).words == "broken"


def test_a_part_that_fails_tells_its_last_words(tmp_path: Path) -> None:
    found = outcome(tmp_path, Part("bad", 1))
    assert (found.state, found.words, found.code, found.is_good) == ("failed", "broken", 3, False)


def test_a_part_without_its_tools_is_no_failure(tmp_path: Path) -> None:
    found = outcome(tmp_path, Part("night", 1, "", "lacking", skip_code=2))
    assert (found.state, found.words) == ("skipped", "no namespaces here")
    assert found.is_good


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    found = outcome(tmp_path, Part("hanging", 0.02))
    assert (found.state, found.words, found.is_good) == ("too long", "begun", False)
    child = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    assert not child.exists() or b"1000" not in child.read_bytes()


def test_the_table_has_a_line_for_each_part_and_each_reason(tmp_path: Path) -> None:
    parts = [Part("good", 1), Part("bad", 1)]
    text = table([outcome(tmp_path, part) for part in parts])
    lines = text.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["good", "passed"], ["bad", "failed"]]
    assert lines[3:] == ["skipped in good: 2 x no Maven here"]
