"""The job `archive` as a process of its own, killed in the middle of a batch, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylarkmq.client import Message
from skylarkmq.client.spark.archive.commits import COMMITS, STAGING
from skylarkmq.client.sync import Producer
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import Place, committed, listed

COUNT = 1_200
BATCH = 300
PATIENCE_S = 180.0


def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which pandas can not be imported, by the driver or by a worker."""
    blocked = tmp_path / "blocked" / "pandas"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('not needed')\n")
    path = os.pathsep.join([str(blocked.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


def command(broker: SyncBroker, topic: str, table: Path) -> list[str]:
    conf = (
        "spark.ui.enabled=false",
        "spark.driver.memory=1g",
        "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level=OFF",
    )
    return [
        sys.executable, "-m", "skylarkmq.client.spark.jobs.archive", topic, str(table),
        "--name-server", broker.namesrv_addr, "--batch-messages", str(BATCH), "--json",
        "--master", "local[2]", *(part for setting in conf for part in ("--conf", setting)),
    ]  # fmt: skip


def run_until_in_batch(given: Sequence[str], env: dict[str, str], table: Path) -> None:
    """Kill driver, JVM and workers at once when the second batch or a later one is being written.

    Ends when its work is half done, not after some time; a run that ends too soon fails the test.
    """
    with subprocess.Popen(given, env=env, start_new_session=True, stdout=-3, stderr=-3) as child:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (
                len(list(table.glob(f"{COMMITS}/*.json"))) >= 3
                and any(table.glob(f"{STAGING}/**/*.staged"))
            ):
                assert child.poll() is None, "the job ended before it could be killed"
                assert time.monotonic() < deadline, "the job has not come to its second batch"
                time.sleep(0.002)
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.spark
def test_driver_killed_in_a_batch(broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with Producer(broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number in range(COUNT):
            producer.send(Message(topic, bytes(2_000)), queue=queues[number % len(queues)])
    everything: list[Place] = sorted(
        (topic, queue.broker_name, queue.queue_id, offset)
        for queue in queues
        for offset in range(COUNT // len(queues))
    )
    env, given = environment(tmp_path), command(broker, topic, table)
    run_until_in_batch(given, env, table)
    for seen in (committed(table), listed(table)):
        assert BATCH <= len(seen) < COUNT
        assert len(set(seen)) == len(seen)

    again = subprocess.run(given, env=env, capture_output=True, timeout=PATIENCE_S, check=False)
    assert again.returncode == 0, again.stderr.decode()[-2000:]
    figures = json.loads(again.stdout)["figures"]
    assert 0 < figures["messages"] < COUNT
    assert figures["messages_archived_before"] == 0  # the table says where to go on
    assert committed(table) == listed(table) == everything
    assert not list((table / STAGING).iterdir())
