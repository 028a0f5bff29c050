"""The SDK without uvloop, fcntl and all of Linux's own calls: imported whole, and used."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("portable_child.py")


async def test_without_anything_of_linux(tmp_path: Path) -> None:
    async with live_broker(tmp_path / "store", message_delay_level="1s 5s") as broker:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            namesrv_of(broker),
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, errors = await asyncio.wait_for(child.communicate(), LIMIT_S)
        finally:
            if child.returncode is None:
                child.kill()
    assert child.returncode == 0, errors.decode()
    count, bodies, loaded = out.decode().split()
    assert int(count) > 60
    assert bodies == "late,one,ordere,packed,plain,two"
    assert loaded == "none"
    assert errors == b""
