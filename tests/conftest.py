"""What every test leaves as it found it, how properties are tried, and a machine that is busy."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from skylarkmq.broker.base.clock import SystemClock as BrokersClock
from skylarkmq.client.clock import SystemClock
from skylarkmq.client.config import ClientConfig, ProducerConfig
from skylarkmq.client.producer.send_pipeline import SendPipeline
from skylarkmq.client.producer.sender import Sender
from skylarkmq.client.services import Services
from skylarkmq.common import files
from skylarkmq.remoting import client
from skylarkmq.remoting.waiting import within
from tests.support.amounts import Amounts
from tests.support.busy import busy_processes
from tests.support.cpu_report import CpuReport
from tests.support.patience import LIMIT_S
from tests.support.scheduling import TogetherPlugin

# How long an example takes says how busy the machine is. A failure prints how to see it again.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("suite")

M_MMAP_THRESHOLD: Final = -3
LARGE: Final = 1 << 20
INTEROP_FOLDER: Final = Path(__file__).parent / "interop"
START_TIMEOUT_S: Final = ClientConfig("any:1").start_timeout
REQUEST_TIMEOUT_S: Final = ClientConfig("any:1").request_timeout
SEND_TIMEOUT_S: Final = ProducerConfig().send_timeout


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--busy", type=int, default=0, metavar="N", help="beside N busy processes")
    parser.addoption(
        "--cpu-limit",
        type=float,
        default=0.0,
        metavar="S",
        help="fail when a test without the marker slow takes more CPU seconds",
    )


def pytest_configure(config: pytest.Config) -> None:
    _give_large_blocks_back()
    config.pluginmanager.register(Amounts())
    config.pluginmanager.register(TogetherPlugin())
    config.pluginmanager.register(CpuReport(config, config.getoption("--cpu-limit")))


def _give_large_blocks_back() -> None:
    """Have glibc map what is large by itself: else it keeps what one test frees for later ones."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no programs for other people's brokers where none of them is to run."""
    is_left_out = "not interop" in config.option.markexpr
    return True if is_left_out and collection_path == INTEROP_FOLDER else None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector look at what tests make alone, not at all that was imported.

    It then comes to rings of large objects (disks in memory, brokers) often enough.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    is_worker = hasattr(session.config, "workerinput")  # of xdist: they share the machine
    with busy_processes(0 if is_worker else session.config.getoption("--busy")):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def patient_clients() -> Iterator[None]:
    """Clients on the real clock wait LIMIT_S where they would wait the default 3 s.

    Beside ten busy processes a sound call takes longer than that. A test of a limit hands a clock
    in, or names the limit. A client with such a clock does not wait for its cluster, as nobody
    would move the clock, unless it names `start_timeout`.
    """

    def with_patience(config: Any, services: Services) -> Any:
        if isinstance(services.clock, SystemClock) and config.send_timeout == SEND_TIMEOUT_S:
            return replace(config, send_timeout=LIMIT_S)
        return config

    def connecting(clock: Any, limit_s: float, work: Any) -> Any:
        is_real = isinstance(clock, SystemClock | BrokersClock)
        return within(clock, LIMIT_S if is_real else limit_s, work)

    make_services, make_sender, make_pipeline = (
        Services.__init__,
        Sender.__init__,
        SendPipeline.__init__,
    )

    def services(
        self: Services, config: ClientConfig, network: Any, clock: Any, *rest: Any
    ) -> None:
        if isinstance(clock, SystemClock) and config.request_timeout == REQUEST_TIMEOUT_S:
            config = replace(config, request_timeout=LIMIT_S)
        make_services(self, config, network, clock, *rest)

    def sender(self: Sender, config: ProducerConfig, its: Services, *rest: Any) -> None:
        make_sender(self, with_patience(config, its), its, *rest)

    def pipeline(self: SendPipeline, config: ProducerConfig, its: Services, *rest: Any) -> None:
        make_pipeline(self, with_patience(config, its), its, *rest)

    def checked(self: ClientConfig) -> None:
        check_config(self)
        if self.clock is not None and self.start_timeout == START_TIMEOUT_S:
            object.__setattr__(self, "start_timeout_s", 0.0)

    check_config = ClientConfig.__post_init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClientConfig, "__post_init__", checked)
        patch.setattr(Services, "__init__", services)
        patch.setattr(client, "within", connecting)
        patch.setattr(Sender, "__init__", sender)
        patch.setattr(SendPipeline, "__init__", pipeline)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_power_cuts() -> Iterator[None]:
    """No file of this process waits for the disk: a broker starts and stops with forty syncs.

    Nothing that the process does shows whether they happened. What is synced, and when, is seen on
    disks that tests hand in; real power cuts meet brokers in processes of their own.
    """

    def sync(fd: int) -> None:
        os.fstat(fd)  # a file that is closed is an error still

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        patch.setattr(os, "fdatasync", sync)
        patch.setattr(files, "_datasync", sync)
        yield


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Commands that run within a test set the process's logging up for themselves."""
    loggers = [logging.getLogger(name) for name in (None, "skylarkmq", "skylarkmq.audit")]
    before = [(each, each.handlers[:], each.level, each.propagate) for each in loggers]
    yield
    for logger, handlers, level, propagates in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagates


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
