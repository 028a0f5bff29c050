"""A query that was killed with a batch sent and not committed, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylarkmq.client import DeduplicationWindow, Message
from skylarkmq.client.sync import Admin, Producer
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.worker_path import make_worker_path
from tests.support.patience import JVM_LIMIT_S, until_sync

pytestmark = [pytest.mark.timing, pytest.mark.spark]

PROGRAM = Path(__file__).parent / "support" / "stopped_sink.py"
COUNT = 800
BODIES = {b"%d" % number for number in range(COUNT)}


def bodies(broker: SyncBroker, topic: str) -> Counter[bytes]:
    return Counter(message.body for message in broker.messages(topic))


def run_until_sent(command: Sequence[str], env: dict[str, str], sent: Sequence[Path]) -> None:
    """Kill driver, JVM and workers at once when both queries have sent a batch."""
    with subprocess.Popen(command, env=env, start_new_session=True, stdout=-3, stderr=-3) as child:
        try:
            until_sync(
                lambda: all(path.exists() for path in sent) or child.poll() is not None,
                "a batch of each query",
                JVM_LIMIT_S,
            )
            assert child.poll() is None, "the program ended before it could be killed"
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_driver_killed_between_batch_and_commit(
    broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    once, twice = f"{topic}_once", f"{topic}_twice"
    with broker.client() as client, Admin(client=client) as admin:
        admin.create_topic(once, deduplication=DeduplicationWindow(600))
        admin.create_topic(twice)
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number, body in enumerate(BODIES):
            producer.send(Message(topic, body), queue=queues[number % len(queues)])
    env = {
        **os.environ,
        "PYTHONPATH": make_worker_path(tmp_path / "workers"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, str(PROGRAM), broker.namesrv_addr, topic, once, twice, str(tmp_path)]
    run_until_sent([*command, "stop"], env, [tmp_path / f"{name}-sent" for name in (once, twice)])
    # A task of each was repeated, and the batch is not committed.
    assert all((tmp_path / f"{name}-failed").exists() for name in (once, twice))
    assert not list(tmp_path.glob("*/commits/0"))
    assert bodies(broker, once) == Counter(BODIES)
    assert bodies(broker, twice).keys() == BODIES
    assert bodies(broker, twice).total() > COUNT

    again = subprocess.run(command, env=env, capture_output=True, timeout=JVM_LIMIT_S, check=False)
    assert again.returncode == 0, again.stderr.decode()[-2000:]
    assert len(list(tmp_path.glob("*/commits/0"))) == 2
    assert bodies(broker, once) == Counter(BODIES)
    assert bodies(broker, twice).total() > 2 * COUNT
