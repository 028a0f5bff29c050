"""The commands of the page about clusters are run as they stand, but for ports and folders."""

from __future__ import annotations

import re
import shlex
import socket
from itertools import pairwise
from pathlib import Path

import pytest

from skylarkmq.client import Admin, ConnectionFailed, Message, Producer
from tests.support.commands import Commands, commands
from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_groups

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "operations" / "clusters.md"
COMMAND = re.compile(r"^    \.venv/bin/skylarkmq (.+)$", re.MULTILINE)
BOTH = {"broker-a", "broker-b"}
OF_A_BROKER = (-2, 1)
"""Its fast port and the one for slaves, seen from its listen port."""


def on_free_ports(lines: list[str]) -> tuple[list[str], str]:
    """Return the commands on other ports, and where their name servers are."""
    text = "\n".join(lines)
    ports = list(dict.fromkeys(re.findall(r"(?:listenPort|ExporterPort)=(\d+)", text)))
    groups = free_groups(*[OF_A_BROKER] * len(ports))
    others = {port: str(group[0]) for port, group in zip(ports, groups, strict=True)}
    text = re.sub(r"\d+", lambda number: others.get(number[0], number[0]), text)
    (namesrv,) = set(re.findall(r"namesrvAddr=([\d.:;]+)", text))
    return text.splitlines(), namesrv


def test_every_port_becomes_another_one_and_nothing_else() -> None:
    lines = COMMAND.findall(PAGE.read_text("utf-8"))
    numbers = re.compile(r"\d+")
    meant = {"9876", "9877", "10911", "10921", "5557", "5558"}
    for _ in range(3):
        found, _ = on_free_ports(lines)
        others: dict[str, str] = {}
        for line, other in zip(lines, found, strict=True):
            assert numbers.sub("", line) == numbers.sub("", other)
            pairs = zip(numbers.findall(line), numbers.findall(other), strict=True)
            for old, new in pairs:
                assert others.setdefault(old, new) == new
        assert {old for old, new in others.items() if old != new} == meant
        ports = sorted(int(others[old]) for old in meant)
        assert all(high - low > 3 for low, high in pairwise(ports))


async def known(processes: Commands, namesrv: str) -> None:
    """Wait until a name server knows both brokers, while all processes run."""
    seen: list[set[str]] = []
    ready = '"event":"ready"'
    await processes.until(lambda: all(ready in each.output for each in processes.left), "all")
    async with Admin(namesrv_addr=namesrv) as admin:

        async def everyone() -> bool:
            try:
                names = {broker.name for broker in (await admin.cluster()).brokers}
            except ConnectionFailed:
                names = set[str]()
            seen.append(names)
            return names == BOTH

        try:
            await processes.until(everyone, f"both brokers at {namesrv}")
        except AssertionError as error:
            error.add_note(f"{len(seen)} looks ended, the last ones saw {seen[-3:]}")
            raise


@pytest.mark.slow
async def test_the_cluster_of_the_page_runs_and_outlives_a_name_server(tmp_path: Path) -> None:
    lines, namesrv = on_free_ports(COMMAND.findall(PAGE.read_text("utf-8")))
    assert [line.split()[0] for line in lines] == ["namesrv", "namesrv", "broker", "broker"]
    first, second, broker_a, broker_b = map(shlex.split, lines)
    one, other = namesrv.split(";")
    async with commands(tmp_path) as processes:
        await processes.start(*broker_a)  # brokers first: they find the name servers later
        await processes.start(*broker_b)
        await processes.start(*second)
        killed = await processes.start(*first)
        await known(processes, one)
        await known(processes, other)
        async with (
            Admin(namesrv_addr=namesrv) as admin,
            Producer(namesrv_addr=namesrv, send_timeout=LIMIT_S) as producer,
        ):
            await admin.create_topic("payments", queues=4, order=True)
            acks = [await producer.send(Message("payments", "m")) for _ in range(8)]
            assert {ack.queue.broker_name for ack in acks} == BOTH
            await killed.kill()
            acks = [await producer.send(Message("payments", "m")) for _ in range(8)]
            assert {ack.queue.broker_name for ack in acks} == BOTH
        await processes.start(*first)
        await known(processes, one)
        async with Admin(namesrv_addr=one) as admin:
            found = await admin.describe_topic("payments")
        assert found.message_count == 16
        assert all(each.order for each in found.settings)


@pytest.mark.slow
async def test_one_that_ends_is_told_with_what_all_of_them_printed(tmp_path: Path) -> None:
    lines, _ = on_free_ports(COMMAND.findall(PAGE.read_text("utf-8")))
    port = re.findall(r"listenPort=(\d+)", lines[0])[0]
    async with commands(tmp_path) as processes:
        await processes.start(*shlex.split(lines[2]))
        with socket.create_server(("127.0.0.1", int(port))):
            await processes.start(*shlex.split(lines[0]))
            await until(lambda: processes.all[1].output, "its last words")
        with pytest.raises(AssertionError) as caught:
            await processes.until(lambda: False, "nothing")
    text = str(caught.value)
    assert "namesrv-1 ended with 1\n" in text
    assert f"cannot listen on 127.0.0.1:{port}" in text
    assert "--- broker-0 (runs)" in text
