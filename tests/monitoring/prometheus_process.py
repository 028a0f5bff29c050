"""A real Prometheus in a process of its own, on loopback, and promtool: Debian's `prometheus`."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.patience import LIMIT_S, until_sync
from tests.support.ports import free_ports

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = PROMETHEUS / "rules.yml"


def program(name: str) -> str:
    """Return where a program is, or skip the test that needs it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


def promtool(*arguments: str | Path) -> str:
    """Run promtool; return what it says, and fail when it fails."""
    done = subprocess.run(
        [program("promtool"), *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class PrometheusProcess:
    """Scrapes some targets every second, and evaluates the rules as often."""

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]]) -> None:
        """Start it, with our scrape configuration but for these targets, and wait for it."""
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        ours = {job["job_name"] for job in config["scrape_configs"]}
        config["scrape_configs"] += [{"job_name": job} for job in targets if job not in ours]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [*targets.get(job["job_name"], ())]}]
        folder.mkdir()
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        port = free_ports()[0]
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    program("prometheus"), f"--config.file={file}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        until_sync(self._is_ready, "Prometheus")

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with suppress(OSError):
            urllib.request.urlopen(f"{self.url}/-/ready", timeout=LIMIT_S).close()
            return True
        return False

    def get(self, path: str, **fields: str) -> Any:
        """Return the `data` of an answer of its HTTP API.

        Raises:
            AssertionError: it refuses.
        """
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{fields}: {error.read().decode()}") from None

    def query(self, query: str) -> list[Any]:
        """Return the series of a query's answer."""
        found: list[Any] = self.get("query", query=query)["result"]
        return found

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the alerts that fire, with their annotations."""
        return {
            alert["labels"]["alertname"]: alert["annotations"]
            for alert in self.get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
