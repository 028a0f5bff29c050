"""`skylarkmq console` as a process, alone and beside `serve`; wrong use of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import shlex
import socket
from pathlib import Path

import click
import httpx2
import pytest
from click.testing import CliRunner

from skylarkmq.cli import main
from skylarkmq.testing import run_broker
from tests.support.commands import Command, commands
from tests.support.patience import until
from tests.support.ports import free_groups
from tests.tools.console.support import Browser

pytestmark = pytest.mark.timing
FILE_LIMIT = 64
TWO_BROKERS = (-2, 1, 8, 10, 11)
ADDRESS = re.compile(r"console of (\S+) (?:is )?at (http://\S+/)")


async def get(address: str) -> str:
    """Return the page of a console, by HTTP as it is."""
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


async def address_in(command: Command) -> str:
    """Return where the console of a process listens, once it does."""

    def told() -> str | None:
        assert command.process.returncode is None, command.tail()
        found = ADDRESS.search(command.output)
        return None if found is None else found[2]

    address = await until(told, "the console")
    assert address is not None
    return address


@pytest.mark.slow
async def test_a_console_lives_on_after_a_silent_crowd_took_all_its_files(tmp_path: Path) -> None:
    async with run_broker() as broker, commands(tmp_path) as processes:
        words = ("console", "--listen", "0", "--namesrv", broker.namesrv_addr)
        command = await processes.start(*words)
        address = await address_in(command)
        resource.prlimit(command.process.pid, resource.RLIMIT_NOFILE, (FILE_LIMIT, FILE_LIMIT))
        host, port = address.removeprefix("http://").rstrip("/").split(":")
        crowd = [socket.create_connection((host, int(port))) for _ in range(FILE_LIMIT + 20)]
        folder = Path(f"/proc/{command.process.pid}/fd")
        await until(lambda: len(list(folder.iterdir())) >= FILE_LIMIT - 1, "the crowd")
        for peer in crowd:
            peer.close()
        assert (await get(address)).startswith("HTTP/1.1 200")
        await command.stop()
        assert command.process.returncode == 0, command.tail()


async def test_a_console_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    async with run_broker() as broker, commands(tmp_path) as processes:
        words = ("console", "--listen", "0", "--namesrv", broker.namesrv_addr)
        command = await processes.start(*words)
        answer = await get(await address_in(command))
        assert answer.startswith("HTTP/1.1 200") and "broker-a" in answer and "Read only" in answer
        await command.stop()
        assert command.process.returncode == 0, command.tail()


async def test_a_change_is_noted_as_one_object_of_json(tmp_path: Path) -> None:
    async with run_broker() as broker, commands(tmp_path) as processes:
        words = ("console", "--listen", "0", "--write", "--namesrv", broker.namesrv_addr)
        command = await processes.start(*words)
        address = await address_in(command)
        async with httpx2.AsyncClient(base_url=address, follow_redirects=True) as client:
            seen, fields = "/topics/new", {"topic": "T", "queues": "1", "perm": "rw"}
            answer = await Browser(client, address).change(seen, fields, seen=seen)
            assert answer.status_code == 200, answer.text
        (line,) = (line for line in command.output.splitlines() if "topic.create" in line)
        assert json.loads(line)["result"] == "done"


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.slow
async def test_a_console_beside_serve_lives_as_long(tmp_path: Path, brokers: int) -> None:
    (listen, *_), (namesrv,), (page,) = free_groups(TWO_BROKERS, (), ())
    async with commands(tmp_path) as processes:
        keys = {
            "namesrvListenPort": namesrv,
            "listenPort": listen,
            "metricsPromExporterPort": 0,
            "storePathRootDir": tmp_path / "store",
        }
        settings = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        command = await processes.start(
            "serve", "--dev", "--brokers", str(brokers), "--console", str(page), *settings
        )
        address = await address_in(command)

        async def shown() -> bool:
            with contextlib.suppress(ConnectionError):  # it starts after its servers
                return (await get(address)).startswith("HTTP/1.1 200")
            return False

        await until(shown, "the console's page")
        await command.stop()
        assert command.process.returncode == 0, command.tail()
        with pytest.raises(OSError):
            await get(address)


def wrong(*words: str) -> str:
    """Return what the command says about wrong use."""
    result = CliRunner(env={"NAMESRV_ADDR": ""}).invoke(main, words)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_wrong_use() -> None:
    keys = ("--access-key", "somebody", "--secret-key", "something")
    assert "does not go with an account" in wrong("console", "--login", *keys)
    assert "add --login" in wrong("console", "--write", "--listen", "0.0.0.0:80")
    assert "is not HOST:PORT" in wrong("console", "--listen", "here")


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(main, ["console", "--listen", port])
    assert result.exit_code == 1 and "cannot listen on" in result.output


def test_the_commands_of_the_page_are_those_of_the_command_line() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operations" / "console.md").read_text("utf-8")
    lines = re.findall(r"^    skylarkmq (.+?)(?: +#.*)?$", page, re.MULTILINE)
    assert len(lines) >= 6
    for line in lines:
        name, *words = shlex.split(line)
        command = main.get_command(click.Context(main), name)
        assert command is not None
        command.make_context(name, words)
