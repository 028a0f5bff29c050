"""The formats with Spark behind a Spark Connect server, from a client without a JVM."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.spark.requirements import JavaNotFoundError, ensure_java
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.conftest import QUICK
from tests.spark.support.worker_path import make_patient
from tests.spark.test_source import COUNT, fill
from tests.support.patience import JVM_LIMIT_S, until_sync

CLIENT = Path(__file__).parent / "support" / "connect_client.py"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, "the server has ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def connect_server(folder: Path, environment: dict[str, str]) -> Generator[str]:
    """Run a server on this machine; yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "skylarkmq.spark.submit", "--class", SERVER]
    command += ["--master", "local[2]"]
    settings = {
        **QUICK,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": folder / "local",
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    for name, value in settings.items():
        command += ["--conf", f"{name}={str(value).lower() if isinstance(value, bool) else value}"]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        until_sync(lambda: listens(port, server), "a server that listens", JVM_LIMIT_S)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.spark
def test_a_client_of_a_connect_server(broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    for name in ("grpc", "pandas"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"pyspark[connect] is not installed: no {name}")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    # Other tests' workers find no pandas on their path; a client of Spark Connect needs it.
    environment["PYTHONPATH"] = f"{make_patient(tmp_path / 'workers')}{os.pathsep}{ROOT}"
    try:
        ensure_java(environment)
    except JavaNotFoundError as error:
        pytest.skip(f"no Spark here: {error}")
    fill(broker, topic)
    target = f"{topic}_target"
    broker.create_topic(target, 2)
    client = environment | {"JAVA_HOME": "/nowhere"}

    def run(*command: object) -> dict[str, Any]:
        """Run a program of Python's, and return the last thing it prints."""
        done = subprocess.run(
            [sys.executable, *map(str, command)], cwd=tmp_path, env=client, capture_output=True,
            text=True, timeout=JVM_LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return told

    with connect_server(tmp_path, environment) as server:
        told = run(CLIENT, server, broker.namesrv_addr, topic, target, tmp_path)
    assert told == {
        "is_connect": True,
        "count": COUNT,
        "one": ["7"],
        "listed": 8,
        "streamed": COUNT,
        "behind": 0,
        "written": COUNT,
        "job": "is refused",
    }
