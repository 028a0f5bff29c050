"""The units in deploy/systemd: as systemd reads them, and their commands run as it runs them."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from skylarkmq.broker.config.config_file import Sources, load_broker_config, load_namesrv_config
from tests.support.patience import until_sync

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
PROGRAM = "/opt/skylarkmq/bin/skylarkmq"
NAMES = ("skylarkmq", "skylarkmq-namesrv")
CONFIG = {"skylarkmq": "broker.conf", "skylarkmq-namesrv": "namesrv.conf"}


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / f"{name}.service")
    return parser


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_waits_for_ready_and_writes_in_one_folder_alone(name: str) -> None:
    service = unit(name)["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert int(service["WatchdogSec"]) > 0
    assert service["ProtectSystem"] == "strict"
    folder = f"/var/lib/{service['StateDirectory']}"
    written = (UNITS / CONFIG[name]).read_text("utf-8")
    paths = [line.partition("=")[2] for line in written.splitlines() if line.startswith(("s", "k"))]
    assert paths and all(path.startswith(folder + "/") for path in paths)
    assert service["WorkingDirectory"] == folder
    command = shlex.split(service["ExecStart"])
    assert command[0] == PROGRAM
    assert f"/etc/{service['ConfigurationDirectory']}/{CONFIG[name]}" in command


def test_the_configurations_are_ones_that_the_servers_take() -> None:
    broker = load_broker_config(Sources(file=UNITS / "broker.conf", host_name="host"))
    assert broker.config.broker_name == "broker-a"
    names = load_namesrv_config(Sources(file=UNITS / "namesrv.conf", host_name="host"))
    assert names.config.kv_config_path is not None


@pytest.mark.interop
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed (Debian: systemd)")
    program = tmp_path / "skylarkmq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    file = tmp_path / f"{name}.service"
    text = (UNITS / file.name).read_text("utf-8")
    file.write_text(text.replace(PROGRAM, str(program)), "utf-8")
    checked = subprocess.run(
        [tool, "verify", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    about_it = [line for line in checked.stderr.splitlines() if file.name in line]
    assert (checked.returncode, about_it) == (0, [])
    exposed = [tool, "security", "--offline=true", "--threshold=25", str(file)]
    done = subprocess.run(exposed, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.setblocking(False)
        yield bound


@pytest.mark.timing
@pytest.mark.parametrize("name", NAMES)
def test_its_command_tells_when_it_is_ready_feeds_the_watchdog_and_stops_by_sigterm(
    name: str, systemd: socket.socket, tmp_path: Path
) -> None:
    service = unit(name)["Service"]
    config = tmp_path / CONFIG[name]
    here = str(tmp_path / "state")
    text = (UNITS / CONFIG[name]).read_text("utf-8")
    config.write_text(text.replace(f"/var/lib/{service['StateDirectory']}", here))
    (tmp_path / "state").mkdir()
    command = shlex.split(service["ExecStart"])
    words = [str(config) if word.startswith("/etc/") else word for word in command[1:]]
    free = ("LISTEN_PORT", "NAMESRV_LISTEN_PORT", "METRICS_PROM_EXPORTER_PORT")
    environment = {
        **os.environ,
        **{f"SKYLARKMQ_{key}": "0" for key in free},
        "SKYLARKMQ_MAPPED_FILE_SIZE_COMMIT_LOG": "8388608",
        "NOTIFY_SOCKET": str(systemd.getsockname()),
        "WATCHDOG_USEC": "300000",
    }
    program = [sys.executable, "-m", "skylarkmq.cli"]
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(
            [*program, *words], env=environment, cwd=ROOT, stdout=log, stderr=log
        )
    try:
        states = _until(child, systemd, "READY=1")
        assert "WATCHDOG=1" not in states
        ready = [
            json.loads(line)
            for line in (tmp_path / "log").read_text().splitlines()
            if '"msg":"ready"' in line.replace(": ", ":")
        ]
        assert len(ready) == 1, "READY=1 comes when it serves"
        assert _until(child, systemd, "WATCHDOG=1", times=3)
        child.send_signal(signal.SIGTERM)
        _until(child, systemd, "STOPPING=1")
        assert until_sync(lambda: child.poll() is not None)
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()


def _until(
    child: subprocess.Popen[bytes], systemd: socket.socket, state: str, times: int = 1
) -> list[str]:
    """Return what was told up to the `times`th message with a state."""
    seen: list[str] = []

    def is_told() -> bool:
        with suppress(BlockingIOError):
            seen.extend(systemd.recv(4096).decode().splitlines())
        is_over = sum(line == state for line in seen) >= times
        assert is_over or child.poll() is None, f"it ended with {child.returncode}"
        return is_over

    until_sync(is_told, state)
    return seen
