"""The plug-in as pytest runs it: modes of asynchronous plug-ins, workers, reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import skylarkmq.client
import skylarkmq.testing.threaded  # noqa: F401 - else each run within this one loads it anew
from tests.support.patience import LIMIT_S

pytest_plugins = ["pytester"]

ASYNC_TEST = """
from skylarkmq.client import Message, Producer

{mark}
async def test_round_trip(skylarkmq_broker, skylarkmq_broker_session):
    for broker in (skylarkmq_broker, skylarkmq_broker_session):
        async with Producer(namesrv_addr=broker.namesrv_addr) as producer:
            await producer.send(Message("orders", b"hello"))
        await broker.advance(1)
        assert [m.body for m in await broker.messages("orders")] == [b"hello"]
"""
LOOP_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
LAZY = """
import sys
import skylarkmq.testing.plugin, skylarkmq.testing
loaded = [name for name in sys.modules if name.startswith("skylarkmq")]
assert sorted(loaded) == ["skylarkmq", "skylarkmq.testing", "skylarkmq.testing.plugin"], loaded
from skylarkmq.testing import run_broker
assert "prometheus_client" not in sys.modules and "skylarkmq.client" not in sys.modules
"""


@pytest.mark.parametrize(
    ("arguments", "mark"),
    [
        (("-o", "asyncio_mode=auto"), ""),
        (("-o", "asyncio_mode=strict"), "import pytest\n@pytest.mark.asyncio"),
        (("-p", "no:asyncio", "-p", "anyio"), "import pytest\n@pytest.mark.anyio"),
    ],
    ids=["auto", "strict", "anyio"],
)
def test_any_plug_in_for_coroutines_will_do(
    pytester: pytest.Pytester, arguments: tuple[str, ...], mark: str
) -> None:
    if "anyio" in arguments:
        pytest.importorskip("anyio")
        pytester.makeconftest(
            "import pytest\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
        )
    pytester.makepyfile(ASYNC_TEST.format(mark=mark))
    pytester.runpytest_inprocess(*LOOP_SCOPE, *arguments).assert_outcomes(passed=1)


def test_tests_without_a_loop_settings_and_markers(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest
        @pytest.fixture(scope="session")
        def skylarkmq_settings():
            return {"defaultTopicQueueNums": 3}
        """
    )
    pytester.makepyfile(
        """
        import pytest

        def config_of(broker):
            return broker.controller.config

        def test_settings(skylarkmq_broker, skylarkmq_broker_sync, skylarkmq_broker_session):
            assert skylarkmq_broker_sync.broker is skylarkmq_broker
            assert skylarkmq_broker_sync.messages("orders") == []
            for broker in (skylarkmq_broker, skylarkmq_broker_session):
                assert config_of(broker).default_topic_queue_nums == 3

        @pytest.mark.skylarkmq("dev", settings={"flushDiskType": "SYNC_FLUSH"})
        def test_marker(skylarkmq_broker, skylarkmq_broker_session):
            config = config_of(skylarkmq_broker)
            assert config.store.flush_disk_type == "SYNC_FLUSH"
            assert config.store.max_hash_slot_num == 20_000
            assert config.default_topic_queue_nums == 3
            assert skylarkmq_broker is not skylarkmq_broker_session
        """
    )
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:asyncio", "-p", "no:xdist")
    result.assert_outcomes(passed=2)


def test_a_failed_test_tells_what_its_broker_holds(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_fails(skylarkmq_broker_sync):
            skylarkmq_broker_sync.create_topic("orders", queues=2)
            assert False

        def test_passes(skylarkmq_broker_sync):
            skylarkmq_broker_sync.create_topic("unseen")
        """
    )
    result = pytester.runpytest_inprocess(*LOOP_SCOPE)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*- skylarkmq broker -*", "broker 127.0.0.1:*", "topic orders:*"])
    result.stdout.no_fnmatch_line("*unseen*")


@pytest.mark.slow
def test_workers_of_xdist_have_brokers_of_their_own(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_alone(skylarkmq_broker_sync, skylarkmq_broker_session, number, tmp_path_factory):
            skylarkmq_broker_sync.create_topic(f"topic-{number}")
            found = skylarkmq_broker_sync.dump()
            assert [n for n in range(4) if f"topic-{n}" in found] == [number]
            seen = tmp_path_factory.getbasetemp().parent / "seen"
            seen.mkdir(exist_ok=True)
            (seen / skylarkmq_broker_session.namesrv_addr.replace(":", "-")).touch()
            (seen / skylarkmq_broker_sync.namesrv_addr.replace(":", "-")).touch()
        """
    )
    result = pytester.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=4)
    (seen,) = Path(str(pytester.path)).parent.rglob("seen") or [None]
    assert len(list(seen.iterdir())) >= 3


def test_loading_the_plug_in_loads_nothing_else() -> None:
    subprocess.run([sys.executable, "-c", LAZY], check=True, timeout=LIMIT_S)
