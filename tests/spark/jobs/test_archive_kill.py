"""The job `archive` as a process of its own, killed in the middle of a batch, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.conftest import QUICK
from tests.spark.support.archives import Place, committed, open_table
from tests.spark.support.worker_path import make_worker_path
from tests.support.patience import JVM_LIMIT_S, until_sync

pytestmark = pytest.mark.timing

STOPPED = Path(__file__).parents[1] / "support" / "stopped_archive.py"
COUNT = 1_200
BATCH = 300


def arguments(broker: SyncBroker, topic: str, table: Path) -> list[str]:
    conf = [f"{name}={str(value).lower()}" for name, value in QUICK.items()]
    return [
        topic, str(table), "--name-server", broker.namesrv_addr,
        "--batch-messages", str(BATCH), "--json",
        "--master", "local[2]", *(part for setting in conf for part in ("--conf", setting)),
    ]  # fmt: skip


def run_until_in_batch(given: Sequence[str], env: dict[str, str], stopped: Path) -> None:
    """Kill driver, JVM and workers at once when a batch after the first is about to be committed.

    The job waits there by itself; a run that ends instead fails the test.
    """
    command = [sys.executable, str(STOPPED), "3", str(stopped), *given]
    with subprocess.Popen(command, env=env, start_new_session=True, stdout=-3, stderr=-3) as child:
        try:
            until_sync(lambda: stopped.exists() or child.poll() is not None, "a batch", JVM_LIMIT_S)
            assert stopped.exists(), "the job ended before it could be killed"
        finally:
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.spark
def test_driver_killed_in_a_batch(broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    table = tmp_path / "table"
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number in range(COUNT):
            producer.send(Message(topic, bytes(2_000)), queue=queues[number % len(queues)])
    everything: list[Place] = sorted(
        (topic, queue.broker_name, queue.queue_id, offset)
        for queue in queues
        for offset in range(COUNT // len(queues))
    )
    given = arguments(broker, topic, table)
    env = {
        **os.environ,
        "PYTHONPATH": make_worker_path(tmp_path / "workers"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    run_until_in_batch(given, env, tmp_path / "stopped")
    seen = committed(table)
    assert BATCH <= len(seen) < COUNT
    assert len(set(seen)) == len(seen)
    named = {table / file.name for file in open_table(table).files()}
    assert set(table.rglob("part-*.parquet")) > named  # the batch was written, and not committed

    command = [sys.executable, "-m", "skylarkmq.spark.jobs.archive", *given]
    again = subprocess.run(command, env=env, capture_output=True, timeout=JVM_LIMIT_S, check=False)
    assert again.returncode == 0, again.stderr.decode()[-2000:]
    figures = json.loads(again.stdout)["figures"]
    assert 0 < figures["messages"] < COUNT
    assert figures["messages_archived_before"] == 0  # the table says where to go on
    assert committed(table) == everything
