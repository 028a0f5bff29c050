"""Measures how soon a test has its broker.

    python -m tests.bench.testkit [--rounds 5] [--brokers 20]

    import     the first `import skylarkmq.testing` of a process, until `run_broker` is there
    plug-in    what every pytest run pays that does not use a broker
    ready      from `run_broker()` until clients are served; "first" is the first of a process
    gone       from the end of the block until folder, threads and sockets are gone
    message    the first message by a client of its own: connect, route, topic made, acknowledged

Each round is a process, with the byte code of a first one that does not count; medians of all. CPU
time tells more than the clock on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

TARGET_READY_MS = 100.0
LIMIT_S = 120
NAMES = {
    "plugin_ms": "plug-in alone, CPU",
    "import_ms": "import",
    "import_cpu_ms": "import, CPU",
    "first_ready_ms": "ready, first of a process",
    "ready_ms": "ready",
    "ready_p95_ms": "ready, 95 of 100",
    "message_ms": "message",
    "gone_ms": "gone",
    "store_kib": "store on the disk, KiB",
}


def _ms(since: float) -> float:
    return (time.perf_counter() - since) * 1000


def one_round(brokers: int) -> dict[str, float]:
    """The figures of this process, which must be a new one."""
    figures: dict[str, float] = {}
    if importlib.util.find_spec("pytest") is not None:
        importlib.import_module("pytest")  # it is there when it loads the plug-in
        cpu = time.process_time()
        importlib.import_module("skylarkmq.testing.plugin")
        figures["plugin_ms"] = (time.process_time() - cpu) * 1000
    started, cpu = time.perf_counter(), time.process_time()
    from skylarkmq.testing import run_broker  # noqa: F401

    figures["import_ms"] = _ms(started)
    figures["import_cpu_ms"] = (time.process_time() - cpu) * 1000
    return figures | asyncio.run(_brokers(brokers))


async def _brokers(count: int) -> dict[str, float]:
    from skylarkmq.client import Message, Producer
    from skylarkmq.testing import run_broker

    ready: list[float] = []
    message: list[float] = []
    gone: list[float] = []
    size = 0
    for _ in range(count + 1):
        started = time.perf_counter()
        async with run_broker() as broker:
            ready.append(_ms(started))
            files = [path.stat() for path in broker.root.rglob("*") if path.is_file()]
            size = sum(stat.st_blocks * 512 for stat in files)
            started = time.perf_counter()
            async with Producer(namesrv_addr=broker.namesrv_addr) as producer:
                await producer.send(Message("orders", b"hello"))
                message.append(_ms(started))
            started = time.perf_counter()
        gone.append(_ms(started))
    first, *later = ready
    return {
        "first_ready_ms": first,
        "ready_ms": median(later),
        "ready_p95_ms": sorted(later)[int(len(later) * 0.95)],
        "message_ms": median(message),
        "gone_ms": median(gone),
        "store_kib": size / 1024,
    }


def child(brokers: int, environment: dict[str, str]) -> dict[str, float]:
    """The figures of a new process."""
    command = [sys.executable, "-m", "tests.bench.testkit", "--child", "--brokers", str(brokers)]
    run = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=LIMIT_S)
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def main() -> None:
    """Run the rounds and print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--brokers", type=int, default=20)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one_round(options.brokers)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        rounds = [child(options.brokers, environment) for _ in range(options.rounds + 1)][1:]
    print("a broker for tests, ms (medians)")
    for key, name in NAMES.items():
        if key not in rounds[0]:
            continue
        figure = median(found[key] for found in rounds)
        target = f"target {TARGET_READY_MS:.0f}" if key.endswith("ready_ms") else ""
        print(f"  {name:<28}{figure:>8.1f}  {target}".rstrip())


if __name__ == "__main__":
    main()
