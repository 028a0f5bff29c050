"""The script that writes lines wrong: on a project of three files, whose tests need no pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, MutantError
from tests.mutants.trial import Plan, Result, report_of, run, share_of, table_of

PYTHON = (sys.executable, "-S")  # a test file is a program that fails

CODE = """\
def least(number: int) -> int:
    if number < 3:
        number = 3
    unseen = 1
    while number > 99:
        number -= 1
    return number
"""
TEST = "from kit.room.thing import least\nassert [least(n) for n in (1, 7, 100)] == [3, 7, 99]\n"
CAUGHT = Mutant("room/thing.py", "number = 3", "number = 2", "test_thing.py")
SURVIVES = Mutant("room/thing.py", "unseen = 1", "unseen = 2", "test_thing.py")
HANGS = Mutant("room/thing.py", "number -= 1", "number += 0", "test_thing.py")
STALE = Mutant("room/thing.py", "number = 4", "number = 5", "test_thing.py")
TWICE = Mutant("room/thing.py", "number >", "number <", "test_thing.py")
NO_TEST = Mutant("room/thing.py", "number = 3", "number = 2", "test_gone.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in (("room/thing.py", CODE), ("room/__init__.py", ""), ("kit/__init__.py", ""),
                       ("tests/test_thing.py", TEST)):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "kit" / "room").symlink_to("../room")
    return root


def tried(root: Path, *mutants: Mutant, limit_s: float = 60, jobs: int = 1) -> list[Result]:
    copies = root.parent / "copies"
    plan = Plan(root, mutants, jobs, limit_s, PYTHON, "kit")
    try:
        return run(plan, copies, lambda line: None)
    finally:
        assert (root / "room/thing.py").read_text() == CODE, "the checkout stays as it is"
        assert not [*root.rglob("__pycache__")]


def test_one_that_is_caught_and_one_that_survives(project: Path) -> None:
    results = tried(project, CAUGHT, SURVIVES, CAUGHT, jobs=2)
    assert [result.fate for result in results] == ["caught", "survived", "caught"]
    assert share_of(results) == 2 / 3
    lines = table_of(results)
    assert lines[1].split() == ["room", "2", "1", "0", "67%"]
    assert lines[-2] == "survived: room/thing.py: unseen = 1 -> unseen = 2"
    assert "NOT EXPLAINED" in lines[-1]
    assert [each["fate"] for each in report_of(results)] == ["caught", "survived", "caught"]


def test_one_that_hangs_is_ended_and_counts_as_seen(project: Path) -> None:
    (result,) = tried(project, HANGS, limit_s=0.05)
    assert (result.fate, result.is_seen) == ("timeout", True)


def test_a_survivor_with_a_reason_is_explained(project: Path) -> None:
    explained = Mutant(SURVIVES.file, SURVIVES.old, SURVIVES.new, SURVIVES.tests, "nobody reads it")
    (result,) = tried(project, explained)
    assert (result.fate, result.is_unexplained) == ("survived", False)
    assert table_of([result])[-1].strip() == "nobody reads it"


@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        (STALE, "stands there 0 times, not once"),
        (TWICE, "stands there 2 times, not once"),
        (NO_TEST, "tests/test_gone.py is not there"),
        (Mutant("room/thing.py", "return number", "return (", "test_thing.py"), "is no Python"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_runs(
    project: Path, mutant: Mutant, told: str
) -> None:
    (project / "room/thing.py").write_text(CODE.replace("unseen = 1", "unseen = number > 5"))
    plan = Plan(project, [CAUGHT, mutant], 1, 60, PYTHON, "kit")
    with pytest.raises(MutantError, match=told):
        run(plan, project.parent / "copies", lambda line: None)
    assert not (project.parent / "copies").exists()


def test_tests_that_fail_anyway_prove_nothing(project: Path) -> None:
    (project / "tests/test_thing.py").write_text("raise SystemExit('red')")
    with pytest.raises(MutantError, match=r"fail without a mutant:\nred"):
        tried(project, CAUGHT)


def test_a_copy_that_is_not_what_runs_is_noticed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment that puts another place before the copy would let every mutant survive."""
    elsewhere = project.parent / "elsewhere"
    (elsewhere / "kit/room").mkdir(parents=True)
    for name in ("kit/__init__.py", "kit/room/__init__.py", "kit/room/thing.py"):
        (elsewhere / name).write_text("")
    (project / "kit/room").unlink()
    (project / "kit/room").symlink_to(elsewhere / "kit/room")
    with pytest.raises(MutantError, match="of the copy is not what runs"):
        tried(project, CAUGHT)
