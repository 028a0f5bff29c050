"""What systemd is told: when a start goes on, when it is over, and that the loop still runs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skylarkmq.broker.start.banner import StartProgress
from skylarkmq.broker.start.service_manager import ServiceManager
from tests.support.manual_clock import ManualClock
from tests.support.patience import until_sync

ME = 4711


class Systemd:
    """Its end of the socket."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """Return the messages since the last call, as their lines."""
        messages: list[list[str]] = []
        try:
            while True:  # until nothing more waits
                messages.append(self.socket.recv(4096).decode().splitlines())
        except BlockingIOError:
            return messages


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path)
    with closing(made.socket):
        yield made


@pytest.fixture
def manager(systemd: Systemd) -> Iterator[ServiceManager]:
    environment = {
        "NOTIFY_SOCKET": systemd.path,
        "WATCHDOG_USEC": "60000000",
        "WATCHDOG_PID": str(ME),
    }
    made = ServiceManager(environment, ME)
    yield made
    made.close()


def test_a_life(systemd: Systemd, manager: ServiceManager) -> None:
    manager.starting("recovering the log: 1 %")
    manager.ready("broker-a at 127.0.0.1:10911")
    manager.stopping()
    assert systemd.heard() == [
        ["STATUS=recovering the log: 1 %", "EXTEND_TIMEOUT_USEC=300000000"],
        ["READY=1", "STATUS=broker-a at 127.0.0.1:10911"],
        ["STOPPING=1", "STATUS=stopping"],
    ]


def test_a_long_start_asks_for_more_time_at_each_percent(
    systemd: Systemd, manager: ServiceManager, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("w") as no_terminal:
        progress = StartProgress(no_terminal, manager.starting)
        heard: list[list[str]] = []
        for done in range(1000):
            progress("recovering the log", done, 1000)
            heard += systemd.heard()
    statuses = [status for status, more in heard if more.startswith("EXTEND_TIMEOUT")]
    assert statuses == [f"STATUS=recovering the log: {percent} %" for percent in range(100)]


def test_the_loop_feeds_the_watchdog_three_times_in_its_limit(
    systemd: Systemd, manager: ServiceManager
) -> None:
    clock = ManualClock()
    manager.watch(clock)
    assert systemd.heard() == [["WATCHDOG=1"]]
    clock.advance(59.0)
    assert systemd.heard() == [["WATCHDOG=1"]] * 2
    manager.close()
    clock.advance(60.0)
    assert systemd.heard() == []


def test_a_loop_that_hangs_is_fed_for_while_it_waits_for_a_disk_alone(
    systemd: Systemd, manager: ServiceManager
) -> None:
    clock = ManualClock()
    manager.watch(clock)
    systemd.heard()
    manager.spare(is_held=True)  # the loop has fed since the last look
    assert systemd.heard() == []
    manager.spare(is_held=True)
    assert systemd.heard() == [["WATCHDOG=1"]]
    manager.spare(is_held=False)
    assert systemd.heard() == []


@pytest.mark.parametrize(
    ("environment", "limit_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_whose_watchdog_it_is(
    systemd: Systemd, environment: dict[str, str], limit_s: float
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": systemd.path, **environment}, ME)
    assert manager.watchdog_s == limit_s
    manager.close()


def test_an_abstract_socket(tmp_path: Path) -> None:
    name = f"skylarkmq-{tmp_path.name}-{tmp_path.parent.name}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as bound:
        bound.bind("\0" + name)
        manager = ServiceManager({"NOTIFY_SOCKET": f"@{name}"}, ME)
        manager.ready("here")
        assert until_sync(lambda: bound.recv(100)) == b"READY=1\nSTATUS=here"
        manager.close()


@pytest.mark.parametrize("name", ["", "vsock:2:1234", "not-absolute"])
def test_without_systemd_nothing_happens(name: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1"}, ME)
    assert not manager.is_there
    clock = ManualClock()
    manager.watch(clock)
    manager.starting("x")
    manager.ready("x")
    manager.stopping()
    manager.close()


def test_a_systemd_that_is_behind_holds_up_no_start_and_misses_no_end_of_it(
    systemd: Systemd, manager: ServiceManager
) -> None:
    for percent in range(1000):
        manager.starting(f"{percent}")  # more than a socket keeps
    told = threading.Thread(target=manager.ready, args=("here",))
    told.start()
    heard = until_sync(systemd.heard)
    told.join()
    assert ["READY=1", "STATUS=here"] in [*heard, *systemd.heard()]


def test_who_is_gone_costs_a_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}, ME)
    with caplog.at_level(logging.WARNING):
        manager.ready("x")
    assert "systemd was not told READY=1" in caplog.text
    manager.close()
