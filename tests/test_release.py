"""`make release` before it builds: what it takes from the changelog, and when it refuses."""

from __future__ import annotations

import sys

import pytest

from tests import release

CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.2.0] - 2026-12-01\n\n### Added\n\n- it\n"
)


def test_a_version_has_its_section() -> None:
    assert release.changes_of(CHANGELOG, "1.2.0") == "### Added\n\n- it"
    assert release.changes_of(CHANGELOG, "Unreleased") == "- new"
    assert release.changes_of(CHANGELOG, "1.2") is None
    assert release.changes_of(CHANGELOG, "1x2.0") is None


def test_a_release_is_refused_while_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "__version__", "0.0.0")
    monkeypatch.setattr(release, "PROJECT", {"project": {}})
    monkeypatch.setattr(release, "said", lambda *_: "something")
    monkeypatch.setattr(sys, "argv", ["release"])
    with pytest.raises(SystemExit, match="not ready to be released") as refused:
        release.main()
    for what in ("no section [0.0.0]", "[project.urls]", "not committed", "a tag v0.0.0"):
        assert what in str(refused.value)


def test_an_interpreter_is_one_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(release, "said", lambda path, *_: {"/bin/python3.12": "3.12"}.get(path, ""))
    assert [*release.interpreters()] == ["3.12"]
