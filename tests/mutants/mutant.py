"""A line of the product that is written wrong on purpose, and the tests that should see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class MutantError(Exception):
    """The table doesn't fit the code any more."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one place."""

    file: str
    """Below the project's folder: `store/log/append.py`."""
    old: str
    """Stands in the file exactly once."""
    new: str
    tests: str
    """Test files below `tests`, parted by blanks: the smallest set that should see it."""
    accepted: str = ""
    """Why nothing sees it, and nothing should: it changes no behaviour, or none that matters."""

    @property
    def room(self) -> str:
        """The top-level folder."""
        return self.file.partition("/")[0]

    @property
    def name(self) -> str:
        """The file and the change, in one line."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {old} -> {new or '(nothing)'}"

    def test_files(self) -> list[str]:
        """The test files, below the project's folder."""
        return [f"tests/{name}" for name in self.tests.split()]

    def written_into(self, text: str) -> str:
        """Return the file's text with the change.

        Raises:
            MutantError: the old text is not there exactly once, or the new one is no Python.
        """
        if (count := text.count(self.old)) != 1:
            raise MutantError(f"{self.name}\n    the old text stands there {count} times, not once")
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, self.file, "exec")
        except SyntaxError as error:
            raise MutantError(f"{self.name}\n    the new text is no Python: {error}") from error
        return changed


def check(root: Path, mutants: Iterable[Mutant]) -> None:
    """Look at the whole table before anything runs.

    Raises:
        MutantError: names all that don't fit the code.
    """
    wrong: list[str] = []
    for mutant in mutants:
        try:
            mutant.written_into((root / mutant.file).read_text(encoding="utf-8"))
        except (MutantError, OSError) as error:
            wrong.append(str(error))
        wrong += [
            f"{mutant.name}\n    {name} is not there"
            for name in mutant.test_files()
            if not (root / name).is_file()
        ]
    if wrong:
        raise MutantError("\n".join(wrong))
