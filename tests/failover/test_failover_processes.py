"""Three replicas, a name server and a real etcd, broken on purpose; the long form is the command.

The command runs as a process of its own, as a human runs it. That unavailability stays within its
bound, a busy machine may break; the command says so, these tests do not.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.failover.checker import check
from tests.failover.cluster import HOSTS, Cluster
from tests.failover.history import History, Operation, digest, read_history
from tests.failover.load import TOPIC, Load, create_topic
from tests.failover.network import Namespaces, why_no_namespaces
from tests.interop import java
from tests.interop.children import Child, Children, Event
from tests.interop.tools import JavaTools
from tests.support.etcd_process import etcd_program
from tests.support.patience import LIMIT_S, until_sync

ROOT = Path(__file__).resolve().parents[2]
A_SECOND = 20  # messages
JAVA_TRIES = 3


@pytest.fixture
def namespaces(tmp_path: Path) -> None:
    etcd_program(tmp_path)
    if why := why_no_namespaces():
        pytest.skip(why)


def _start(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.failover", "--folder", str(folder / "run"), *words]
    with (folder / "output").open("w") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, cwd=ROOT)


def _summary(folder: Path, *faults: str, loopback: bool = False) -> dict[str, Any]:
    """Run the command over these faults and return what it found."""
    words = [word for kind in faults for word in ("--fault", kind)]
    words += ["--seed", "1", "--json", str(folder / "summary.json")]
    command = _start(folder, *words, *(["--loopback"] if loopback else []))
    try:
        command.wait(LIMIT_S * 3)
    finally:
        command.terminate()  # it ends what it started
        command.wait(LIMIT_S)
    said = (folder / "output").read_text()
    assert (folder / "summary.json").exists(), said
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    assert set(found["violations"]) <= {"late"}, said
    assert set(found["faults"]) == set(faults)
    assert found["acked"] > 100
    assert found["read"] > found["acked"]
    assert found["log_bytes_compared"] > 0
    assert _processes_of(folder) == []
    return found


def _processes_of(folder: Path) -> list[str]:
    """The commands of processes that name a folder."""
    commands: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended meanwhile
            continue
    return [command for command in commands if str(folder) in command]


@pytest.mark.fault_root
@pytest.mark.usefixtures("namespaces")
def test_a_master_is_killed_and_the_next_one_loses_its_network(tmp_path: Path) -> None:
    found = _summary(tmp_path, "kill_master", "cut_master_off")
    assert found["longest_unavailability_s"].keys() == {"kill_master", "cut_master_off"}


@pytest.mark.fault
def test_without_root_a_master_is_killed_and_paused_and_all_are_restarted(tmp_path: Path) -> None:
    etcd_program(tmp_path)
    _summary(tmp_path, "kill_master", "pause_master", "full_restart", loopback=True)


@pytest.mark.fault
def test_the_command_ends_everything_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    etcd_program(tmp_path)
    command = _start(tmp_path, "--loopback", "--minutes", "5")
    try:
        until_sync(lambda: "acknowledged" in (tmp_path / "output").read_text(), "the first sends")
        assert len(_processes_of(tmp_path / "run")) > 5
    finally:
        command.send_signal(signal.SIGTERM)
        assert command.wait(LIMIT_S) == 1
    assert _processes_of(tmp_path / "run") == []


@pytest.mark.fault_root
@pytest.mark.interop
@pytest.mark.usefixtures("namespaces")
async def test_the_java_client_goes_on_at_the_next_master(tmp_path: Path) -> None:
    if why := java.missing():
        pytest.skip(why)
    cluster = Cluster(tmp_path, Namespaces(HOSTS))
    children, history = Children(tmp_path), History(tmp_path / "history.jsonl")
    try:
        await asyncio.to_thread(cluster.make)
        await cluster.start()
        first = (await cluster.led()).master
        await create_topic(cluster.address(first))
        traffic = await asyncio.to_thread(_JavaTraffic, JavaTools(children, cluster))
        await asyncio.to_thread(traffic.goes_on)

        cluster.replicas[first].kill()
        second = (await cluster.led(but=first)).master
        await asyncio.to_thread(traffic.goes_on)
        cluster.replicas[first].start()
        await cluster.whole()
        for other in HOSTS:
            cluster.cut_off(second, [other], into=True, out=True)
        await cluster.led(but=second)
        await asyncio.to_thread(traffic.goes_on)
        cluster.network.mend()
        last = await cluster.whole()

        await asyncio.to_thread(traffic.end)
        traffic.tell(history)
        load = Load(history, cluster.namesrv, {}, seed=1)
        await load.read_all(cluster.address(last.master), "end", final=True)
        assert cluster.unasked_ends() == []
    finally:
        history.close()
        await asyncio.to_thread(children.stop_all)
        await asyncio.to_thread(cluster.end)
    verdict = check(read_history(history.path), consumers=["java consumer"])
    assert verdict.is_good, str(verdict)
    assert verdict.acked >= 3 * A_SECOND


class _JavaTraffic:
    """RocketMQ's own producer, which sends on and on, and its push consumer. Blocks."""

    def __init__(self, tools: JavaTools) -> None:
        self._consumer = tools.consume(TOPIC, "G_java")
        self._producer: Child = tools.start_produce(TOPIC, "steady", A_SECOND)

    def goes_on(self) -> None:
        """Wait for further acknowledgements."""
        self._producer.count("sent", len(self._producer.named("sent")) + A_SECOND)

    def end(self) -> None:
        """Stop when the consumer has got all that was acknowledged."""
        self._producer.finish()
        acked = {f"m-{event['index']}" for event in self._acked()}

        def received() -> bool:
            return acked <= {event["body"] for event in self._consumer.named("message")}

        self._consumer.wait_for("all that was acknowledged", received)
        self._consumer.finish()

    def tell(self, history: History) -> None:
        """Add what both said; when each send began and ended, they do not say."""
        acked = self._acked()
        for event in acked:
            place = f"{TOPIC}/{event['queue_id']}", event["queue_offset"]
            told = digest(f"m-{event['index']}".encode())
            history.add(Operation("send", "java", 0, 1, "acked", *place, told, tries=JAVA_TRIES))
        known = {event["index"] for event in acked}
        for event in (*self._producer.named("error"), *self._producer.named("sent")):
            if event["index"] not in known:
                told = digest(f"m-{event['index']}".encode())
                send = Operation("send", "java", 0, 1, "unknown", body=told, tries=JAVA_TRIES)
                history.add(send)
        for event in self._consumer.named("message"):
            place = f"{TOPIC}/{event['queue_id']}", event["queue_offset"]
            told = digest(event["body"].encode())
            history.add(Operation("read", "java consumer", 1, 1, "read", *place, told))

    def _acked(self) -> list[Event]:
        return [event for event in self._producer.named("sent") if event["status"] == "SEND_OK"]
