"""The commands of the page about the command line are run as they stand, one after another."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from tests.tools.admin.support import Shell

PAGE = Path(__file__).parents[1] / "docs" / "operations" / "command-line.md"
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAME_SERVER = "127.0.0.1:9876"
WITHOUT_FORM = {"send", "consume", "mqadmin"}
ADMIN = Account("rocketmq-admin", "12345678-admin", admin=True)


def commands() -> list[tuple[str, str]]:
    """Return the commands of the page, each with the line that is shown of its answer, if one."""
    lines = "".join(BLOCK.findall(PAGE.read_text("utf-8"))).splitlines()
    shown = [*lines[1:], "$ end"]
    return [
        (line.removeprefix("$ skylarkmq "), "" if after.startswith("$ ") else after)
        for line, after in zip(lines, shown, strict=True)
        if line.startswith("$ ")
    ]


@pytest.fixture
def broker() -> Iterator[SyncBroker]:
    """One with access control, for all sections of the page."""
    with run_broker_sync(accounts=[ADMIN]) as running:
        yield running


def test_every_command_ends_well_and_shows_what_the_page_does(
    broker: SyncBroker, tmp_path: Path
) -> None:
    variables = {
        "SKYLARKMQ_ACCESS_KEY": ADMIN.access_key,
        "SKYLARKMQ_SECRET_KEY": ADMIN.secret_key,
        "ORDERS_SECRET": "an open secret",
    }
    shell = Shell(tmp_path, variables=variables)
    found = commands()
    assert len(found) > 40
    for line, shown in found:
        words = shlex.split(line.replace(NAME_SERVER, broker.namesrv_addr))
        if words[0] not in WITHOUT_FORM and "-o" not in words:
            words += ["-o", "table"]  # as on a terminal
        if "--every" in words:
            words[words.index("--every") + 1] = "0.001"
        said = shell.ok(*words)
        first = said.out.partition("\n")[0]
        assert shown.split() == first.split()[: len(shown.split())], (line, said)


def test_the_page_names_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert rows == [str(code) for code in range(7)]
