"""Measures a broker on this machine: CPU time for each message, rate, latency.

    python -m tests.bench [--quick] [--rounds 3] [--seconds 1.0] [--codec JSON] [--only TEXT]
                          [--store DIR] [--json FILE]

The load comes ready encoded from another process. Rounds are interleaved: each scenario runs once
in every round, beside an echo server under the same load, and medians are shown. Compare the
CPU time, and that to the echo's; rate and latency depend on what else the machine does. The time
of a CRC-32 tells how fast the machine was meanwhile, against the one that the targets are from.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
import zlib
from dataclasses import astuple, replace
from pathlib import Path
from statistics import median

from tests.bench.frames import ACCESS_KEY, GROUP, PULL_UP_TO, SECRET_KEY
from tests.bench.load import Figures
from tests.bench.peers import Load, Server, broker, echo, load, resident_mib, slave
from tests.bench.report import Report, Row, Start
from tests.bench.scenarios import ASYNC, MAPPED, POOL, Scenario, all_scenarios

SYNC_TRIES = 100
CRC_TRIES = 200
CRC_REPEATS = 100
IDLE_S = 1.0
STARTS = 3
POOL_SIZE = 4
NEVER_MS = 2**31 - 1


def disk_sync_ms(folder: Path) -> float:
    """The p50 of the disk's own fdatasync after a write of 4 KiB into an allocated file."""
    times: list[float] = []
    path = folder / "sync-probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, SYNC_TRIES * 4096)
        for number in range(SYNC_TRIES):
            os.pwrite(descriptor, b"x" * 4096, number * 4096)
            started = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - started)
    finally:
        os.close(descriptor)
        path.unlink()
    return median(times) * 1000


def crc_us() -> float:
    """The p50 of a CRC-32 of 1 KiB: how fast this machine is at this hour."""
    data = b"x" * 1024
    times: list[float] = []
    for _ in range(CRC_TRIES):
        started = time.perf_counter()
        for _ in range(CRC_REPEATS):
            zlib.crc32(data)
        times.append((time.perf_counter() - started) / CRC_REPEATS)
    return median(times) * 1e6


def idle_broker(folder: Path) -> Start:
    """What a start costs, and what a broker takes that does nothing; medians.

    Its modules have byte code, as in an installation; a checkout may have none.
    """
    starts: list[Start] = []
    for number in range(STARTS + 1):
        root = folder / f"idle-{number}"
        root.mkdir()
        with broker(root, ASYNC, byte_code=folder / "byte-code") as server:
            time.sleep(IDLE_S)
            resident, of_files = resident_mib(server.pid), resident_mib(server.pid, "RssFile")
            starts.append(Start(server.ready_s, server.ready_cpu_s, resident, of_files))
    counted = map(astuple, starts[1:])  # the first one has compiled the sources
    return Start(*map(median, zip(*counted, strict=True)))


def run_one(scenario: Scenario, server: Server, source: Load, seconds: float) -> Figures:
    job = replace(scenario.job, port=server.port, pid=server.pid, seconds=seconds)
    return source.run(job)


def run_echo(scenario: Scenario, server: Server, source: Load, seconds: float) -> Figures:
    job = replace(scenario.job, port=server.port, pid=server.pid, seconds=seconds / 2, check=False)
    return source.run(job)


def fill(scenario: Scenario, server: Server, source: Load) -> None:
    """Store what the pulls of a scenario will read."""
    source.run(
        replace(
            scenario.job, kind="fill", port=server.port, pid=server.pid, window=256,
            messages=PULL_UP_TO + 100,
        )
    )  # fmt: skip


def settings_of(road: str, flushing: bool) -> dict[str, object]:
    """The keys of a broker that writes on a road."""
    settings: dict[str, object] = {}
    if road == POOL:
        settings |= {"transientStorePoolEnable": "true", "transientStorePoolSize": POOL_SIZE}
    elif road == MAPPED:
        settings |= {"commitLogWriteMode": "mapped", "warmMapedFileEnable": "true"}
    if not flushing:
        settings["flushIntervalCommitLog"] = NEVER_MS
    return settings


def with_account(home: Path) -> dict[str, object]:
    """The keys of a broker with access control and one account, whose file this writes."""
    (home / "conf").mkdir(parents=True)
    account = {
        "accessKey": ACCESS_KEY, "secretKey": SECRET_KEY,
        "topicPerms": [f"{topic}=PUB|SUB" for topic in ("bench-send", "bench-pull-1024")],
        "groupPerms": [f"{GROUP}=SUB"],
    }  # fmt: skip
    (home / "conf" / "plain_acl.yml").write_text(json.dumps({"accounts": [account]}))
    return {"aclEnable": "true", "rocketmqHome": home}


def measure(options: argparse.Namespace, folder: Path) -> Report:
    scenarios = [
        scenario
        for scenario in all_scenarios(options.codec, quick=options.quick)
        if options.only in scenario.key
    ]
    rows = [Row(scenario) for scenario in scenarios]
    disk_ms = disk_sync_ms(folder)
    start = idle_broker(folder)
    with contextlib.ExitStack() as stack:
        servers: dict[tuple[str, str, bool, bool, bool], Server] = {}
        for needed in {scenario.server: None for scenario in scenarios}:
            root = folder / "-".join(map(str, needed))
            root.mkdir()
            flush, road, flushing, access, is_followed = needed
            settings = settings_of(road, flushing)
            if access:
                settings |= with_account(root / "home")
            servers[needed] = stack.enter_context(broker(root, flush, settings))
            if is_followed:
                stack.enter_context(slave(servers[needed]))
        mirror = stack.enter_context(echo())
        source = stack.enter_context(load())
        for scenario in scenarios:
            if scenario.per_pull:
                fill(scenario, servers[scenario.server], source)
        for number in range(options.rounds):
            for row in rows:
                scenario = row.scenario
                print(f"\r\x1b[Kround {number + 1}: {scenario.key}", end="", file=sys.stderr)
                row.broker.append(
                    run_one(scenario, servers[scenario.server], source, options.seconds)
                )
                if scenario.has_echo:
                    row.echo.append(run_echo(scenario, mirror, source, options.seconds))
        print("\r\x1b[K", end="", file=sys.stderr)
    return Report(rows, crc_us(), disk_ms, start)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one short round, 128 B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each scenario in a round")
    parser.add_argument("--codec", default="JSON", choices=("JSON", "ROCKETMQ"))
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 0.5)
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        report = measure(options, Path(folder))
    print(report.text())
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")


if __name__ == "__main__":
    main()
