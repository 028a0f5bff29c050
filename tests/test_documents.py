"""Every Python block of README.md and of docs/ is run as a user would run it, with a real broker.

The comments of a block say what it prints: `# -> text` is a line of its output, and a `*` in it
stands for any text. A program that never ends is stopped after it has printed all of these lines.

A block that begins with `# name.py` is a module: the tests on its page import it.

Command lines of `skylarkmq` on these pages are parsed with the options of the real commands, and
those of the first page are run.
"""

from __future__ import annotations

import asyncio
import fnmatch
import importlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import skylarkmq.testing.threaded  # noqa: F401 - else each run within this one loads it anew
from skylarkmq.cli import main
from skylarkmq.testing.threaded import SyncBroker
from tests.support.amounts import slow
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S
from tests.tools.command import say

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"# -> (.+)$", re.MULTILINE)
COMMAND = re.compile(r"^    \.venv/bin/skylarkmq (.+?)(?: +#.*)?$", re.MULTILINE)
JOB = re.compile(r"^    job (\w+) (.+?)(?: +#.*)?$", re.MULTILINE)
JOB_PAGES = ("docs/spark/jobs.md", "docs/spark/archive.md")
WAITING_PAGE = "docs/sdk/delay.md"
"""Its program sees seconds pass."""
TYPED_PAGE = "docs/spark/typed.md"
AVRO_PAGE = "docs/spark/avro.md"
FIRST_PAGE = "docs/start/first-message.md"
NAME_SERVER = "127.0.0.1:9876"
MODULE = re.compile(r"# ((?!test_)\w+)\.py\n")
PYTEST_MARK = "def test_"
SPARK_MARK = "skylarkmq.spark"
ARCHIVE = "/data/archive"
EMBEDDED_MARK = "port=9876"
LIBRARIES = ("fastapi", "faststream", "celery")


def pages() -> list[Path]:
    """Return README.md and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield a name for each block, from its page and the heading above it, and the block."""
    text = page.read_text(encoding="utf-8")
    for number, match in enumerate(BLOCK.finditer(text), 1):
        heading = re.findall(r"^#+ (.+)$", text[: match.start()], re.MULTILINE)[-1]
        yield f"{page.relative_to(ROOT)} {number} {heading}", match[1]


SNIPPETS = dict(block for page in pages() for block in blocks(page))


def command_lines() -> list[str]:
    """Return the arguments of every `skylarkmq` command line on the pages, each once."""
    found = [match for page in pages() for match in COMMAND.findall(page.read_text("utf-8"))]
    return [*dict.fromkeys(found)]


async def output_of(program: str, folder: Path, promised: list[str]) -> str:
    """Run the program until it ends or has printed what it promised; return what it printed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-c",
        program,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert child.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            async for line in child.stdout:
                lines.append(line.decode().rstrip())
                if promised and not missing_in(lines, promised):
                    break
    except TimeoutError:
        lines.append(f"(ended after {LIMIT_S} s)")
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGINT)
            if ends_well(program):  # and says no more
                lines += (await child.stdout.read()).decode().splitlines()
            try:
                await asyncio.wait_for(child.wait(), LIMIT_S)
            except TimeoutError:
                child.kill()
                await child.wait()
    if ends_well(program) and child.returncode:
        lines.append(f"Traceback or not, it ended with {child.returncode}")
    return "\n".join(lines)


def ends_well(program: str) -> bool:
    """Whether the program says what a signal does."""
    return "stop_on=" in program or "add_signal_handler(" in program


def missing_in(lines: list[str], promised: list[str]) -> list[str]:
    return [each for each in promised if not fnmatch.filter(lines, each)]


def are_programs() -> list[str]:
    """Return the names of the blocks that run by themselves.

    Those with Spark are run by `tests/spark/test_documents.py`, which has a Spark session; those on
    an archive by `tests/spark/archive/test_readers.py`; the one of several processes by
    `tests/test_document_lives.py`;
    those of two pages by tests of their own, which do what the pages say between them.
    """
    marks = (PYTEST_MARK, SPARK_MARK, ARCHIVE, EMBEDDED_MARK)
    return [
        name
        for name, block in SNIPPETS.items()
        if not MODULE.match(block)
        and not any(mark in block for mark in marks)
        and not name.startswith((TYPED_PAGE, AVRO_PAGE))
    ]


@pytest.mark.parametrize("name", [name for name in SNIPPETS if ends_well(SNIPPETS[name])])
async def test_ctrl_c_ends_a_program_well_that_waits_for_a_broker(
    name: str, tmp_path: Path, unused_tcp_port: int
) -> None:
    program = SNIPPETS[name].replace(NAME_SERVER, f"127.0.0.1:{unused_tcp_port}")
    printed = (await output_of(program, tmp_path, ["waiting for name server *"])).splitlines()
    assert len(printed) == 1, printed


@pytest.mark.parametrize(
    "name", [slow(name) if name.startswith(WAITING_PAGE) else name for name in are_programs()]
)
async def test_a_program(name: str, tmp_path: Path) -> None:
    block = SNIPPETS[name]
    async with live_broker(
        tmp_path / "store",
        message_delay_level="1s 2s 1s 1s",
        enable_property_filter=True,
        trace_topic_enable=True,
    ) as broker:
        program = block.replace(NAME_SERVER, namesrv_of(broker))
        promised = [text.strip() for text in PROMISE.findall(block)]
        printed = await output_of(program, tmp_path, promised)
    assert "Traceback" not in printed, printed
    assert missing_in(printed.splitlines(), promised) == [], printed


def are_tests() -> Iterator[object]:
    """Yield the names of the blocks that are tests, and whether pytest is to be a process.

    It is where a block needs libraries that take long to load, or lets hours pass.
    """
    for name, block in SNIPPETS.items():
        if PYTEST_MARK in block:
            yield slow(name, True)
            if not any(each in block for each in (*LIBRARIES, "advance(")):
                yield pytest.param(name, False)


@pytest.mark.parametrize(("name", "is_process"), [*are_tests()])
def test_a_test(name: str, is_process: bool, pytester: pytest.Pytester) -> None:
    for library in LIBRARIES:
        if library in SNIPPETS[name]:
            pytest.importorskip(library, reason="the extra `dev` is not installed")
    page = name.split()[0]
    for other, block in SNIPPETS.items():
        module = MODULE.match(block)
        if module and other.split()[0] == page:
            pytester.makepyfile(**{module[1]: block})
    pytester.makepyfile(SNIPPETS[name])
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    options = ("-q", "-p", "no:cacheprovider")
    if is_process:
        outcome = pytester.runpytest_subprocess(*options, timeout=LIMIT_S)
    else:
        outcome = pytester.runpytest_inprocess(*options, "-p", "no:randomly", "-p", "no:xdist")
    passed = outcome.parseoutcomes().get("passed", 0)
    assert outcome.ret == 0, outcome.stdout.str()
    assert passed == SNIPPETS[name].count(PYTEST_MARK)


def parsed(command: click.Command, arguments: list[str], parent: click.Context | None) -> None:
    """Parse the arguments as the command would, and do nothing else."""
    context = command.make_context(command.name, arguments, parent=parent)
    if isinstance(command, click.Group):
        # What a group leaves for its subcommand is protected in click up to 8.1.
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        _, inner, inner_arguments = command.resolve_command(context, rest)
        assert inner is not None, rest
        parsed(inner, inner_arguments, context)


@pytest.mark.parametrize("line", command_lines())
def test_a_command_line_is_one_that_the_command_takes(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var" / "store").mkdir(parents=True)  # folders that the store tools look for
    (tmp_path / "broker.conf").touch()
    parsed(main, shlex.split(line), None)


@pytest.mark.parametrize(
    ("job", "line"),
    [found for page in JOB_PAGES for found in JOB.findall((ROOT / page).read_text("utf-8"))],
)
def test_a_job_is_one_that_takes_its_arguments(job: str, line: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the jobs need the extra spark")
    module = importlib.import_module(f"skylarkmq.spark.jobs.{job}")
    parsed(module.main, shlex.split(line.replace("/data/archive", str(tmp_path))), None)


def commands_of_the_first_page() -> list[str]:
    """Return them in their order."""
    lines = COMMAND.findall((ROOT / FIRST_PAGE).read_text("utf-8"))
    assert [line.split()[0] for line in lines] == ["send", "consume", "send", "send"]
    return lines


def test_the_commands_of_the_first_page(skylarkmq_broker_sync: SyncBroker) -> None:
    """They are run in their order, as they stand."""
    address = {"NAMESRV_ADDR": skylarkmq_broker_sync.namesrv_addr}
    said = [say(shlex.split(line), variables=address) for line in commands_of_the_first_page()]
    assert [each.code for each in said] == [0] * len(said)
    assert "SEND_OK" in said[0].out
    assert "hello" in said[1].out


@pytest.mark.slow
async def test_the_commands_of_the_first_page_as_processes(tmp_path: Path) -> None:
    printed: list[str] = []
    async with live_broker(tmp_path / "store") as broker:
        for line in commands_of_the_first_page():
            child = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                "from skylarkmq.cli import main; main()",
                *shlex.split(line),
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "NAMESRV_ADDR": namesrv_of(broker)},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(child.communicate(), LIMIT_S)
            assert child.returncode == 0, output.decode()
            printed.append(output.decode())
    assert "SEND_OK" in printed[0]
    assert "hello" in printed[1]
