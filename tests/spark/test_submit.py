"""The command line that spark-submit gets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import NoReturn

import pyspark
import pytest

from skylarkmq.spark import run_module, submit

RUNNER = str(Path(run_module.__file__))
JOB = "skylarkmq.spark.jobs"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        (["job.py", "-m", "x"], ["job.py", "-m", "x"]),
        (["-m", JOB], [RUNNER, JOB]),
        (["-m", JOB, "-m", "x", "--master", "y"], [RUNNER, JOB, "-m", "x", "--master", "y"]),
        (["--master", "local", "-m", JOB], ["--master", "local", RUNNER, JOB]),
        (["--master=local", "-v", "-m", JOB], ["--master=local", "-v", RUNNER, JOB]),
        (["-c", "a=b", "-m", JOB], ["-c", "a=b", RUNNER, JOB]),
        (
            ["--conf", "a=b", "job.py", "-m", "no.such"],
            ["--conf", "a=b", "job.py", "-m", "no.such"],
        ),
        (["--name", "-m", "-m", JOB], ["--name", "-m", RUNNER, JOB]),
        (["--kill", "driver-1"], ["--kill", "driver-1"]),
        (["--version"], ["--version"]),
    ],
)
def test_a_module_stands_for_a_file(given: list[str], expected: list[str]) -> None:
    assert submit.with_module(given) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["-m"], "-m needs a module"),
        (["-m", "no.such.module"], "there is no module 'no.such.module'"),
        (["-m", "skylarkmq.spark.jobs.archiv"], "jobs.archiv'"),
        (["-m", "skylarkmq.spark.jobs.audit", "store", "x"], "`skylarkmq store verify DIR`"),
        (["-m", ""], "there is no module ''"),
        (["-m", "skylarkmq.spark.jobs.dlq", "redrive", "x"], "`skylarkmq dlq redrive GROUP`"),
        (["-m", "skylarkmq.spark.jobs.metrics", "x"], "docs/spark/windows.md"),
        (["-m", ".relative"], "there is no module '.relative'"),
    ],
)
def test_a_module_that_is_not_there(
    given: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        submit.main(given, dict[str, str](), never)
    assert caught.value.code == submit.USAGE_ERROR
    assert text in capsys.readouterr().err


def never(path: str, arguments: list[str], environment: MutableMapping[str, str]) -> NoReturn:
    raise AssertionError(f"{path} must not be run")


class Became(Exception):
    """What would have taken this process's place."""


@pytest.fixture
def java_home(tmp_path: Path) -> str:
    """A Java that looks usable."""
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(
        'JAVA_VERSION="21.0.8"\nMODULES="java.base jdk.incubator.vector"\n'
    )
    return str(home)


def became(arguments: list[str], environment: MutableMapping[str, str]) -> list[str]:
    """The command line that `main` would turn into."""

    def become(path: str, command: list[str], given: MutableMapping[str, str]) -> NoReturn:
        assert path == command[0]
        assert given is environment
        raise Became(*command)

    with pytest.raises(Became) as caught:
        submit.main(arguments, environment, become)
    return list(caught.value.args)


def test_it_becomes_pyspark_s_own(java_home: str) -> None:
    environment = {"JAVA_HOME": java_home, "PATH": os.environ["PATH"]}
    home = Path(pyspark.__file__).parent
    command = became(["--master", "local[2]", "-m", JOB], environment)
    assert command == [str(home / "bin/spark-submit"), "--master", "local[2]", RUNNER, JOB]
    assert environment == {
        "JAVA_HOME": java_home,
        "PATH": os.environ["PATH"],
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("options", "driver_python", "loopback"),
    [
        ([], True, True),
        (["--master", "local-cluster[2,1,1024]"], True, True),
        (["--master=spark://host:7077"], True, False),
        (["--master", "local", "--master", "yarn"], True, False),
        (["--master", "yarn", "--deploy-mode", "cluster"], False, False),
        (["--master", "yarn", "--deploy-mode=cluster"], False, False),
        (["--master", "yarn", "job.py", "--deploy-mode", "cluster"], True, False),
    ],
)
def test_what_only_suits_this_machine_stays_here(
    options: list[str], driver_python: bool, loopback: bool, java_home: str
) -> None:
    environment = {"JAVA_HOME": java_home, "PATH": os.environ["PATH"]}
    became([*options, "-m", JOB], environment)
    assert ("PYSPARK_DRIVER_PYTHON" in environment) == driver_python
    assert ("SPARK_LOCAL_IP" in environment) == loopback


@pytest.mark.parametrize("driver", [None, "mine"])
def test_the_driver_has_its_own_python_and_all_else_that_of_executors(
    driver: str | None, java_home: str, tmp_path: Path
) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"JAVA_HOME": java_home, "PYSPARK_PYTHON": f"{tmp_path}/python"}
    environment |= {"PATH": os.environ["PATH"]}
    if driver is not None:
        environment["PYSPARK_DRIVER_PYTHON"] = driver
    command = became(["--master", "spark://host:7077", "job.py"], environment)
    setting = f"spark.pyspark.driver.python={driver or sys.executable}"
    assert command[1:] == ["--conf", setting, "--master", "spark://host:7077", "job.py"]
    assert environment["PYSPARK_PYTHON"] == f"{tmp_path}/python"
    assert environment["PYSPARK_DRIVER_PYTHON"] == f"{tmp_path}/python"


def test_what_is_set_stays(java_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "environment" / "bin").mkdir(parents=True)
    (tmp_path / "environment" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    (tmp_path / "spark" / "bin" / "spark-submit").write_text("")
    (tmp_path / "spark" / "bin" / "spark-submit").chmod(0o755)
    environment = {
        "JAVA_HOME": java_home,
        "PATH": os.environ["PATH"],
        "PYSPARK_DRIVER_PYTHON": "./environment/bin/python",
        "PYSPARK_PYTHON": "./environment/bin/python",
        "SPARK_HOME": str(tmp_path / "spark"),
        "SPARK_LOCAL_IP": "10.0.0.1",
    }
    before = dict(environment)
    command = became(["job.py"], environment)
    assert command == [str(tmp_path / "spark/bin/spark-submit"), "job.py"]
    assert environment == before


def test_a_spark_home_without_spark(
    java_home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        submit.main(["job.py"], {"JAVA_HOME": java_home, "SPARK_HOME": str(tmp_path)}, never)
    assert f"no bin/spark-submit in {tmp_path} (SPARK_HOME is set to it)" in capsys.readouterr().err


def test_a_packed_environment_is_needed_here_as_well(
    java_home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {
        "JAVA_HOME": java_home,
        "PATH": os.environ["PATH"],
        "PYSPARK_PYTHON": "./env/bin/python",
    }
    with pytest.raises(submit.SubmitError) as caught:
        submit.prepare(["--archives", "a.zip,e.tar.gz#env", "job.py"], dict(environment))
    assert f"PYSPARK_PYTHON=./env/bin/python is not there in {tmp_path}" in str(caught.value)
    assert "mkdir env && tar -xzf e.tar.gz -C env" in str(caught.value)
    submit.prepare(["--deploy-mode", "cluster", "job.py"], dict(environment))


def test_without_bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        submit.main(["job.py"], {"PATH": str(tmp_path)}, never)
    assert caught.value.code == submit.USAGE_ERROR
    assert "no bash on PATH" in capsys.readouterr().err


def test_help_says_what_is_ours(java_home: str, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"JAVA_HOME": java_home, "PATH": os.environ["PATH"]}
    assert became(["--help"], environment)[1:] == ["--help"]
    assert "-m <module>" in capsys.readouterr().out
    became(["-m", JOB, "--help"], environment)
    assert not capsys.readouterr().out


def test_the_runner_leaves_no_trace_of_itself(tmp_path: Path) -> None:
    """A module beside the runner must not be found in place of another of its name."""
    (tmp_path / "shown.py").write_text(
        "import sys\nprint(sys.argv[1:], __name__)\n"
        "try:\n    import run_module\nexcept ImportError:\n    print('clean')\n"
    )
    done = subprocess.run(
        [sys.executable, RUNNER, "shown", "--a", "b c"],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["['--a', 'b c'] __main__", "clean"]


LAUNCHER = """
import os, subprocess, sys
os.write(2, b"first\\n")
done = subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, env={**os.environ, "PYSPARK_GATEWAY_PORT": "1"})
os.write(2, b"last\\n")
os.write(1, done.stdout)
"""
"""Does what spark-submit's JVM does with the streams of its Python."""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
@pytest.mark.parametrize("kind", ["pipe", "shared file", "file"])
def test_what_a_job_prints_is_its_summary_alone(tmp_path: Path, kind: str) -> None:
    (tmp_path / "shown.py").write_text(
        "import os, sys\nprint('summary')\nsys.stdout.flush()\nos.write(2, b'progress\\n')\n"
    )
    launcher = tmp_path / "launcher.py"
    share = (
        "from skylarkmq.spark import submit\n"
        "submit.prepare = lambda *_: ['x']\n"
        "submit.main(['x'], {}, lambda *_: None)\n"
    )
    launcher.write_text((share if kind == "shared file" else "") + LAUNCHER)
    log = tmp_path / "log"
    with log.open("wb") as file:
        done = subprocess.run(
            [sys.executable, str(launcher), RUNNER, "shown"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE if kind == "pipe" else file,
            text=True, check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip
    errors = done.stderr if kind == "pipe" else log.read_text()
    if kind == "file":  # which may be written over: better in the wrong place than lost
        assert (done.stdout, errors) == ("summary\nprogress\n", "first\nlast\n")
    else:
        assert (done.stdout, errors) == ("summary\n", "first\nprogress\nlast\n")
