"""Every Python block of the README is run as a user would: a program of its own, a real broker.

What a block promises stands in its comments: `# -> text` is a line that it prints, a `*` in it any
text. A program that goes on for ever is ended once it has printed all that.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"# -> (.+)$", re.MULTILINE)
NAME_SERVER = "127.0.0.1:9876"
PYTEST_MARK = "def test_"
SPARK_MARK = "skylarkmq.spark"


def blocks(file_name: str) -> Iterator[tuple[str, str]]:
    """Yield the heading above each block, with a number, and the block."""
    text = (ROOT / file_name).read_text()
    for number, match in enumerate(BLOCK.finditer(text), 1):
        heading = re.findall(r"^#+ (.+)$", text[: match.start()], re.MULTILINE)[-1]
        yield f"{number} {heading}", match[1]


SNIPPETS = dict(blocks("README.md"))


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
            try:
                await asyncio.wait_for(child.wait(), LIMIT_S)
            except TimeoutError:
                child.kill()
                await child.wait()
    return "\n".join(lines)


def missing_in(lines: list[str], promised: list[str]) -> list[str]:
    return [each for each in promised if not fnmatch.filter(lines, each)]


def are_programs() -> list[str]:
    """Those with Spark have a test beside the others that need its session."""
    marks = (PYTEST_MARK, SPARK_MARK)
    return [name for name, block in SNIPPETS.items() if not any(mark in block for mark in marks)]


@pytest.mark.parametrize("name", are_programs())
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


@pytest.mark.parametrize("name", [name for name in SNIPPETS if PYTEST_MARK in SNIPPETS[name]])
def test_a_test(name: str, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SNIPPETS[name])
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    outcome = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", timeout=LIMIT_S)
    passed = outcome.parseoutcomes().get("passed", 0)
    assert outcome.ret == 0, outcome.stdout.str()
    assert passed == SNIPPETS[name].count(PYTEST_MARK)
