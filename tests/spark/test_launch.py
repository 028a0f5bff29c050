"""Spark's other programs with Java and Python set."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import NoReturn

import pyspark
import pytest

from skylarkmq.spark import launch
from skylarkmq.spark.submit import SubmitError

HOME = Path(pyspark.__file__).parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A Java that looks usable, and the PATH of this run."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").symlink_to("/bin/sh")
    (home / "release").write_text('JAVA_VERSION="21"\nMODULES="jdk.incubator.vector"\n')
    return {"JAVA_HOME": str(home), "PATH": os.environ["PATH"]}


def test_a_program_of_spark_with_its_arguments(environment: dict[str, str]) -> None:
    ran: list[list[str]] = []

    def become(path: str, command: list[str], given: MutableMapping[str, str]) -> NoReturn:
        assert (path, given) == (command[0], environment)
        ran.append(command)
        raise SystemExit

    master = "org.apache.spark.deploy.master.Master"
    with pytest.raises(SystemExit):
        launch.main(["spark-class", master, "--host", "h"], environment, become)
    assert ran == [[str(HOME / "bin" / "spark-class"), master, "--host", "h"]]
    assert environment["SPARK_HOME"] == str(HOME)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_DRIVER_PYTHON" not in environment  # a worker is no driver


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([], "no program is named"),
        (["spark-clas"], "Spark has no program 'spark-clas'. There are beeline,"),
        (["../../../bin/sh"], "Spark has no program '../../../bin/sh'"),
        (["load-spark-env.sh"], "Spark has no program"),
    ],
)
def test_a_program_that_spark_lacks(
    given: list[str],
    text: str,
    environment: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SubmitError, match=r"pyspark, .*spark-class"):
        launch.prepare(given, environment)
    with pytest.raises(SystemExit) as caught:
        launch.main(given, environment)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err
