"""What every test leaves as it found it, how properties are tried, and a machine that is busy."""

from __future__ import annotations

import logging
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.busy import busy_processes

# How long an example takes says how busy the machine is. A failure prints how to see it again.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--busy", type=int, default=0, metavar="N", help="beside N busy processes")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    is_worker = hasattr(session.config, "workerinput")  # of xdist: they share the machine
    with busy_processes(0 if is_worker else session.config.getoption("--busy")):
        return (yield)


@pytest.fixture(autouse=True)
def root_logging() -> Iterator[None]:
    """Commands that run within a test set the process's logging up for themselves."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Ctrl-C means what it means in a terminal, also where the whole run is in the background.

    Commands that run within a test take signals for a loop of theirs, and uvloop leaves them so.
    """
    ending = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, ending)
