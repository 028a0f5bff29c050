"""What the Dockerfile says: a container of it runs with this environment, command and ports."""

from __future__ import annotations

import re
import shlex

from tests.deploy.tools import ROOT

TEXT = (ROOT / "Dockerfile").read_text("utf-8")
_LAST = TEXT[TEXT.rindex("\nFROM ") :].replace("\\\n", " ")


def environment() -> dict[str, str]:
    """Return the variables of the final stage."""
    words = [shlex.split(line) for line in re.findall(r"^ENV (.+)$", _LAST, re.M)]
    return dict(word.split("=", 1) for line in words for word in line)


def settings() -> dict[str, str]:
    """Return those that are for our servers."""
    return {key: text for key, text in environment().items() if key.startswith("SKYLARKMQ_")}


def ports() -> set[int]:
    """Return the ports that it exposes."""
    (line,) = re.findall(r"^EXPOSE (.+)$", _LAST, re.M)
    return set(map(int, line.split()))


def user() -> tuple[int, int]:
    """Return the numbers of user and group."""
    (found,) = re.findall(r"^USER (\d+):(\d+)$", _LAST, re.M)
    return int(found[0]), int(found[1])


def instruction(name: str) -> str:
    """Return the one line of an instruction of the final stage."""
    (line,) = re.findall(rf"^{name} (.+)$", _LAST, re.M)
    return str(line)
