"""`serve --brokers 2` as a user runs it, and what becomes of it when its processes are killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from skylarkmq.broker.fleet.run import python_command
from skylarkmq.protocol.codes import ResponseCode
from tests.broker.fleet.fleet_rig import TWO_BROKERS, call, fleet, host_and_port, page
from tests.support.patience import until
from tests.support.ports import free_ports
from tests.support.raw_client import send_fields

pytestmark = pytest.mark.timing

SEND, MAX_OFFSET = 310, 30


async def count(address: str) -> int:
    answer = await call(address, MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
    return int(answer.ext_fields["offset"])


@pytest.mark.slow
async def test_all_serve_on_their_own_and_one_signal_stops_all_cleanly(tmp_path: Path) -> None:
    root = tmp_path / "store"
    any_port = {"listenPort": 0, "namesrvListenPort": 0}
    async with fleet(root, "--brokers", "2", **any_port) as it:
        ready = await it.ready()
        routes = await call(ready["namesrvAddr"], 106, {})
        assert set(json.loads(routes.body)["brokerAddrTable"]) == {"a", "a-1"}
        one, two = ready["brokers"]
        assert [one["broker"], two["broker"]] == ["a", "a-1"]
        assert [one["storePathRootDir"], two["storePathRootDir"]] == [
            str(root),
            str(root / "broker-1"),
        ]
        for broker in (one, two):
            answer = await call(broker["listenAddr"], SEND, send_fields("TBW102"), b"x")
            assert answer.code == ResponseCode.SUCCESS

        async def all_ready() -> bool:
            return (await page(ready["metricsAddr"], "/readyz"))[0] == 200

        await until(all_ready)
        status, text = await page(ready["metricsAddr"], "/metrics")
        assert status == 200
        for name in ("a", "a-1"):
            series = "skylarkmq_store_appended_messages_total"
            assert f'{series}{{broker="{name}",cluster="DefaultCluster"}} 1.0' in text
            assert f'process_resident_memory_bytes{{broker="{name}"}}' in text
            assert f'skylarkmq_fleet_scraped{{process="{name}"}} 1.0' in text
        assert text.count("# TYPE process_resident_memory_bytes gauge\n") == 1

        status, text = await page(ready["metricsAddr"], "/drainz?wait=5", method="POST")
        state = json.loads(text)
        assert (status, state["state"]) == (409, "impossible"), "no member is a place for another"
        assert {name: one["state"] for name, one in state["brokers"].items()} == {
            "a": "impossible",
            "a-1": "impossible",
        }
        it.process.send_signal(signal.SIGTERM)
        assert await it.ended() == 0
    assert not (root / "abort").exists() and not (root / "broker-1" / "abort").exists()


@pytest.mark.slow
async def test_a_killed_broker_comes_back_with_its_messages(tmp_path: Path) -> None:
    [port] = free_ports(*TWO_BROKERS)[:1]
    settings = {"brokers": 2, "listenPort": port, "flushDiskType": "SYNC_FLUSH"}
    async with fleet(tmp_path / "store", **settings) as it:
        ready = await it.ready()
        two = ready["brokers"][1]["listenAddr"]
        assert host_and_port(two)[1] == port + 10
        assert (await call(two, SEND, send_fields("TBW102"), b"x")).code == 0
        before = it.pids()
        os.kill(before["a-1"], signal.SIGKILL)
        await it.line(lambda line: "was killed by signal 9" in line["msg"])
        await it.line(lambda line: line["msg"] == "a-1 is ready again")
        assert await count(two) == 1
        after = it.pids()
        assert after["a-1"] != before["a-1"] and after["a"] == before["a"]
        _, text = await page(ready["metricsAddr"], "/metrics")
        assert 'skylarkmq_fleet_restarts_total{process="a-1"} 1.0' in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a-1", "namesrv"])
async def test_one_that_hangs_is_killed_and_comes_back(tmp_path: Path, name: str) -> None:
    settings = {"brokers": 2, "hungProcessTimeoutSeconds": 3}
    async with fleet(tmp_path / "store", **settings) as it:
        ready = await it.ready()
        before = it.pids()
        os.kill(before[name], signal.SIGSTOP)
        told = await it.line(lambda line: f"{name} (process {before[name]}) has not" in line["msg"])
        assert told["level"] == "WARNING"
        await it.line(lambda line: "killed by signal 9: it had not answered" in line["msg"])
        await it.line(lambda line: line["msg"] == f"{name} is ready again")
        assert it.pids()[name] != before[name]
        _, text = await page(ready["metricsAddr"], "/metrics")
        assert re.search(rf'(?m)^skylarkmq_fleet_hangs_total{{process="{name}"}} [1-9]', text)
        assert (await page(ready["metricsAddr"], "/livez"))[0] == 200


@pytest.mark.slow
async def test_one_whose_loop_hangs_writes_where_it_was(tmp_path: Path) -> None:
    settings = {"brokers": 2, "hungProcessTimeoutSeconds": 600}
    async with fleet(tmp_path / "store", **settings) as it:
        await it.ready()
        os.kill(it.pids()["a-1"], signal.SIGABRT)
        await it.line(lambda line: "was killed by signal 6" in line["msg"])
        assert "Fatal Python error: Aborted" in it.text and "link.py" in it.text


@pytest.mark.slow
async def test_brokers_register_at_once_with_a_name_server_that_was_killed(tmp_path: Path) -> None:
    async with fleet(tmp_path / "store", "--brokers", "2") as it:
        ready = await it.ready()
        os.kill(it.pids()["namesrv"], signal.SIGKILL)
        await it.line(lambda line: line["msg"] == "namesrv is ready again")

        async def names() -> bool:
            answer = await call(ready["namesrvAddr"], 106, {})
            return set(json.loads(answer.body)["brokerAddrTable"]) == {"a", "a-1"}

        await until(names)


async def test_brokers_stop_cleanly_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with fleet(root, "--brokers", "2") as it:
        await it.ready()
        it.process.kill()
        await it.ended()
    assert sum("the supervisor is gone" in line["msg"] for line in it.lines) == 3
    assert not (root / "abort").exists() and not (root / "broker-1" / "abort").exists()


@pytest.mark.slow
async def test_one_that_cannot_start_ends_all_with_its_reason(tmp_path: Path) -> None:
    [port] = free_ports(*TWO_BROKERS)[:1]
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", port + 10)
    root = tmp_path / "store"
    async with taken, fleet(root, "--brokers", "2", listenPort=port) as it:
        assert await it.ended() == 1
    assert re.search(rf"(?m)^skylarkmq: a-1: .*cannot listen on 127.0.0.1:{port + 10}", it.text)
    assert not (root / "abort").exists()


@pytest.mark.parametrize(
    ("words", "settings", "told"),
    [
        (["--brokers", "0"], {}, "brokers=0"),
        (["--brokers", "65"], {}, "brokers=65"),
        (["--brokers", "3"], {"listenPort": 9866}, "port 9876 would be that of"),
        (["--brokers", "3"], {"listenPort": 65530}, "smaller listenPort"),
    ],
)
async def test_what_cannot_be_is_one_line_and_code_2(
    tmp_path: Path, words: list[str], settings: dict[str, object], told: str
) -> None:
    async with fleet(tmp_path / "store", *words, **{"namesrvListenPort": 9876, **settings}) as it:
        assert await it.ended() == 2
    assert told in it.text and len(it.text.splitlines()) == 1
    assert not (tmp_path / "store").exists()


async def test_a_folder_that_nobody_serves_is_told(tmp_path: Path) -> None:
    (tmp_path / "store" / "broker-1").mkdir(parents=True)
    async with fleet(tmp_path / "store") as it:
        await it.line(lambda line: "that nobody serves now" in line["msg"])


def test_modules_of_the_working_folder_are_left_out() -> None:
    installed = ["/opt/bin", "/usr/lib/python3.11"]
    safe = [sys.executable, "-P", "-m", "skylarkmq.cli"]
    assert python_command(installed, "/home/somebody") == safe
    for search_path in (["", *installed], ["/home/somebody", *installed]):
        assert python_command(search_path, "/home/somebody") == [safe[0], *safe[2:]]


async def test_the_supervisor_loads_no_broker_and_no_store(tmp_path: Path) -> None:
    code = """
import sys
import skylarkmq.broker.cli, skylarkmq.broker.fleet.run
heavy = ("controller", "components", "message_store", "commit_log", "serving", "uvloop")
print([name for name in sys.modules if name.rpartition(".")[2] in heavy])
"""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert out.strip() == b"[]"
