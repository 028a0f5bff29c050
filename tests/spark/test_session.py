"""The session of the connector: what it is given, and that it works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skylarkmq.spark import requirements, session
from tests.spark.support.worker_path import make_worker_path
from tests.support.patience import JVM_LIMIT_S

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
TIME_ZONE = "spark.sql.session.timeZone"


@pytest.mark.parametrize(
    ("master", "told", "local"),
    [
        ("local", {}, True),
        ("local[2]", {}, True),
        ("local-cluster[2,1,1024]", {}, True),
        (None, {"spark.master": "local[*]"}, True),
        ("spark://host:7077", {}, False),
        (None, {"spark.master": "yarn"}, False),
        (None, {}, False),
    ],
)
def test_only_a_local_master_is_tied_to_this_machine(
    master: str | None, told: dict[str, str], local: bool
) -> None:
    chosen = session.choose(master, told, {})
    assert (chosen.get("spark.driver.host") == "127.0.0.1") == local
    assert (chosen.get("spark.driver.bindAddress") == "127.0.0.1") == local
    assert ("spark.sql.shuffle.partitions" in chosen) == local
    assert session.SETTINGS.items() <= chosen.items()


def test_what_the_caller_says_goes_first_then_spark_submit() -> None:
    told = {ARROW_BYTES: "77", "spark.driver.host": "me", TIME_ZONE: "CET"}
    chosen = session.choose("local", told, {ARROW_BYTES: 5, "spark.ui.enabled": False})
    assert chosen[ARROW_BYTES] == "5"
    assert chosen["spark.ui.enabled"] == "false"
    assert not {"spark.driver.host", TIME_ZONE} & chosen.keys()
    assert chosen["spark.log.level"] == "WARN"


def test_a_connect_server_is_told_by_its_address_or_by_spark_s_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert session.connect_url("sc://host:15002") == "sc://host:15002"
    assert session.connect_url("local[2]") is session.connect_url(None) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    assert session.connect_url(None) == "sc://other"
    assert session.connect_url("local[2]") is None
    assert "spark.driver.host" not in session.choose("sc://host", {}, {})


@pytest.mark.spark
def test_a_session_starts_without_warnings(tmp_path: Path) -> None:
    """In a process of its own, for what its JVM prints, and as the extra is: without pandas.

    PySpark warns of a newer pandas than it knows.
    """
    code = (
        "from skylarkmq.spark import build_session, register\n"
        "session = build_session('quiet', 'local[1]', **{'spark.ui.enabled': False})\n"
        "register(session)\n"
        "print(session.range(3).count())\n"
        "session.stop()\n"
    )
    kept = {name: text for name, text in os.environ.items() if "SPARK_" not in name}
    kept["PYTHONPATH"] = make_worker_path(tmp_path / "workers")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=kept, capture_output=True, text=True,
        timeout=JVM_LIMIT_S, check=False,
    )  # fmt: skip
    if "JavaNotFoundError" in done.stderr:
        pytest.skip(f"no Spark here: {done.stderr.splitlines()[-1]}")
    assert done.stdout == "3\n", done.stderr
    # Of a Java that has the module, from Spark's launcher, before anything of ours.
    module = "WARNING: Using incubator modules: jdk.incubator.vector"
    assert [line for line in done.stderr.splitlines() if line != module] == []


def test_workers_run_the_python_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "ensure_java", lambda: None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(name, "as it was")
        monkeypatch.delenv(name)
    session.prepare()
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    session.prepare()
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        assert os.environ[name] == "./environment/bin/python"
