"""Celery's workers as processes, on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="the extra `dev` is not installed")

import kombu

from skylarkmq.testing import RunningBroker, SyncBroker, run_broker_in_thread
from tests.support.patience import LIMIT_S, until_sync

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]

ALONE = ("-c", "2", "--without-mingle", "--without-gossip")
"""Asks no other workers at the start, which takes a second."""

pytestmark = [pytest.mark.timing]


@contextmanager
def worker(name: str, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker; what is left of it is killed at the end."""
    command = [sys.executable, "-m", "celery", "-A", "celery_shop", "worker", "-n", name]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "-l", "INFO", *arguments],
            cwd=FOLDER,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            until_sync(lambda: b" ready." in log.read_bytes() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningBroker]:
    with run_broker_in_thread() as broker:
        yield broker


@pytest.fixture(scope="module")
def shop(server: RunningBroker) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_NAMESRV", server.namesrv_addr)
        patch.syspath_prepend(str(FOLDER))
        import celery_shop  # as the worker does: its name is part of the tasks' names

        yield celery_shop
        results = celery_shop.app.backend.result_consumer
        if results._consumer is not None:  # a test has waited for a result
            results.stop()
        celery_shop.app.close()
        celery_shop.app.pool.force_close_all()
        del sys.modules["celery_shop"]


@pytest.fixture(scope="module")
def prefork(
    server: RunningBroker, shop: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[bytes]]:
    log = tmp_path_factory.mktemp("celery") / "worker.log"
    with worker("one@test", log, "-c", "2") as process:
        yield process


def test_tasks_are_done_and_their_results_come_back(shop: Any, prefork: object) -> None:
    results = [shop.add.delay(number, 1) for number in range(20)]
    assert [result.get(timeout=LIMIT_S) for result in results] == list(range(1, 21))


def test_a_failure_comes_back(shop: Any, prefork: object) -> None:
    with pytest.raises(ValueError, match="no such customer"):
        shop.fails.delay().get(timeout=LIMIT_S)


def test_a_task_is_retried(shop: Any, prefork: object, server: RunningBroker) -> None:
    assert shop.second_time.delay().get(timeout=LIMIT_S) == 1


def test_a_countdown_waits_at_the_broker(shop: Any, prefork: object, server: RunningBroker) -> None:
    result = shop.add.apply_async((1, 2), countdown=3600)
    assert "1 timed" in SyncBroker(server).dump()
    SyncBroker(server).advance(3601)
    # The worker has the real time: it waits for the rest by itself.
    inspect = shop.app.control.inspect(timeout=LIMIT_S, limit=1)
    (task,) = until_sync(lambda: (inspect.scheduled() or {}).get("one@test"))
    assert task["request"]["id"] == result.id
    shop.app.control.revoke(result.id)


def test_remote_control_reaches_the_worker(shop: Any, prefork: object) -> None:
    assert shop.app.control.inspect(timeout=LIMIT_S, limit=1).ping() == {"one@test": {"ok": "pong"}}


@pytest.mark.slow
def test_a_task_of_a_killed_worker_is_done_by_another_one(
    shop: Any, server: RunningBroker, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    tries.touch()
    with worker("three@test", tmp_path / "log3", "-P", "solo", "-Q", "three", *ALONE) as process:
        result = shop.once.apply_async((str(tries),), queue="three")
        until_sync(tries.read_text)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log = tmp_path / "log4"
    with worker("four@test", log, "-P", "threads", "-Q", "three", *ALONE) as process:
        assert result.get(timeout=LIMIT_S) == "done"
        # It ends well, and has given up what it held.
        shop.app.control.shutdown(destination=["four@test"])
        assert process.wait(LIMIT_S) == 0
    assert len(set(tries.read_text().split())) == 2
    assert SyncBroker(server).lag("kombu-three") == 0
    assert "Traceback" not in log.read_text()


def test_tasks_come_in_the_order_of_their_priority(
    shop: Any, server: RunningBroker, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    done.touch()
    queue = kombu.Queue("ranked", routing_key="ranked", queue_arguments={"x-max-priority": 9})
    for number, priority in enumerate((0, 5, 9, 5, 1)):
        what = f"{priority} {number}"
        shop.noted.apply_async((str(done), what), queue=queue, priority=priority)
    with worker("five@test", tmp_path / "log", "-P", "solo", "-Q", "ranked",
                "--prefetch-multiplier", "1", *ALONE):  # fmt: skip
        until_sync(lambda: len(done.read_text().splitlines()) == 5)
    assert done.read_text().splitlines() == ["9 2", "5 1", "5 3", "1 4", "0 0"]
