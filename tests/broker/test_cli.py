"""The servers' commands as a user runs them: start, one line for what is wrong, clean stop."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from skylarkmq.broker.cli import broker, namesrv, serve
from skylarkmq.broker.config.config_file import Sources, load_broker_config
from skylarkmq.broker.controller import BrokerController
from skylarkmq.common.files import DiskFiles
from skylarkmq.protocol.command import RemotingCommand
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.timing

COMMAND = [sys.executable, "-m", "skylarkmq.cli"]
SMALL = ("mappedFileSizeCommitLog=8388608", "maxMessageSize=1048576")
PORTS = ("listenPort=0", "namesrvListenPort=0", "metricsPromExporterPort=0")


def _arguments(settings: tuple[str, ...]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@contextmanager
def _running(
    *arguments: str, ready_limit: int = 50
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A server process and the fields of its ready line."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SKYLARKMQ_")}
    child = subprocess.Popen(
        [*COMMAND, *arguments, "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert child.stderr is not None
        lines: list[str] = []
        for line in child.stderr:
            lines.append(line)
            fields = json.loads(line) if line.startswith("{") else {}
            if fields.get("event") == "ready":
                yield child, fields
                break
            assert len(lines) < ready_limit
        else:
            pytest.fail("".join(lines))
    finally:
        child.kill()
        child.wait(LIMIT_S)


def _stop(child: subprocess.Popen[str], number: signal.Signals) -> int:
    child.send_signal(number)
    child.communicate(timeout=LIMIT_S)
    return child.returncode


def _connects(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_tells_where_it_is_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    root = tmp_path / "store"
    settings = (f"storePathRootDir={root}", *SMALL, *PORTS, "serverWorkerThreads=4")
    with _running("serve", *_arguments(settings)) as (child, fields):
        for name in ("listenAddr", "namesrvAddr", "metricsAddr"):
            assert _connects(fields[name])
        host, _, port = fields["listenAddr"].rpartition(":")
        assert _connects(f"{host}:{int(port) - 2}")
        assert fields["withoutEffect"] == ["serverWorkerThreads"]
        assert (root / "abort").exists()
        assert _stop(child, number) == 0
    assert not (root / "abort").exists()


def test_every_line_of_a_slave_names_its_id(tmp_path: Path) -> None:
    role = ("brokerName=b", "brokerRole=SLAVE", "brokerId=2")
    settings = (f"storePathRootDir={tmp_path / 'store'}", *SMALL, *PORTS, *role)
    with _running("broker", *_arguments(settings)) as (child, fields):
        child.send_signal(signal.SIGTERM)
        _, rest = child.communicate(timeout=LIMIT_S)
    lines = [fields, *map(json.loads, rest.splitlines())]
    assert len(lines) > 1
    assert {(line["broker"], line["brokerId"]) for line in lines} == {("b", 2)}, rest


@pytest.mark.slow
def test_a_second_broker_on_one_store_is_refused_with_one_line(tmp_path: Path) -> None:
    settings = _arguments((f"storePathRootDir={tmp_path / 'store'}", *SMALL, *PORTS))
    with _running("serve", *settings):
        second = subprocess.run(
            [*COMMAND, "broker", *settings], capture_output=True, text=True, timeout=LIMIT_S
        )
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    assert str(tmp_path / "store") in second.stderr


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = subprocess.run(
            [*COMMAND, "namesrv", "--set", f"listenPort={port}"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert run.returncode == 1
    assert f"127.0.0.1:{port}" in run.stderr and len(run.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_broker_registers_with_a_name_server_of_its_own_process(tmp_path: Path) -> None:
    with _running("namesrv", "--set", "listenPort=0") as (names, fields):
        settings = (
            f"storePathRootDir={tmp_path / 'store'}",
            f"namesrvAddr={fields['namesrvAddr']}",
            *SMALL,
            *PORTS,
        )
        with _running("broker", *_arguments(settings)) as (child, broker_fields):
            assert "namesrvAddr" not in broker_fields
            assert names.stderr is not None
            line = names.stderr.readline()
            assert broker_fields["brokerAddr"] in line and "registered" in line
            assert _stop(child, signal.SIGTERM) == 0
            assert "unregistered" in names.stderr.readline()
        assert _stop(names, signal.SIGTERM) == 0


def _invoke(command: click.Command, *arguments: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner(env={**environment}).invoke(command, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("flushDiskTyp=SYNC_FLUSH", ["flushDiskTyp", "flushDiskType", "--set"]),
        ("listenPort=ten", ["listenPort=ten", "whole number"]),
        ("aclEnable=true", ["aclEnable=true", "rocketmqHome"]),
        ("listenPort", ["listenPort", "--set key=value"]),
    ],
)
def test_a_wrong_configuration_is_one_line_and_code_2(setting: str, parts: list[str]) -> None:
    code, out, err = _invoke(serve, "--set", setting)
    assert (code, out) == (2, "")
    assert err.startswith("skylarkmq: ") and len(err.splitlines()) == 1
    assert all(part in err for part in parts)


def test_a_missing_file_is_one_line_and_code_2(tmp_path: Path) -> None:
    code, _, err = _invoke(broker, "-c", str(tmp_path / "broker.conf"))
    assert code == 2
    assert err == f"skylarkmq: cannot read {tmp_path / 'broker.conf'}: No such file or directory\n"


def test_print_config_shows_every_key_and_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName = a\n")
    code, out, _ = _invoke(
        serve,
        "-c",
        str(path),
        "--set",
        "listenPort=0",
        "--print-config",
        "--origins",
        SKYLARKMQ_FLUSH_DISK_TYPE="SYNC_FLUSH",
    )
    lines = out.splitlines()
    assert code == 0
    assert f"brokerName=a  # {path} line 1" in lines
    assert "flushDiskType=SYNC_FLUSH  # environment SKYLARKMQ_FLUSH_DISK_TYPE" in lines
    assert "listenPort=0  # --set" in lines
    assert "autoCreateTopicEnable=true  # default" in lines


def test_what_print_config_prints_is_a_file(tmp_path: Path) -> None:
    before = _invoke(serve, "--set", "brokerName=a", "--print-config")[1]
    path = tmp_path / "broker.conf"
    path.write_text(before)
    code, again, _ = _invoke(serve, "-c", str(path), "--print-config")
    assert (code, again) == (0, before)


def test_the_development_profile_lies_below_what_is_said(tmp_path: Path) -> None:
    code, out, _ = _invoke(
        serve, "--dev", "--set", "maxHashSlotNum=7", "--print-config", "--origins"
    )
    assert code == 0
    lines = out.splitlines()
    assert "storePathRootDir=var/store  # --profile dev" in lines
    assert "mappedFileSizeCommitLog=67108864  # --profile dev" in lines
    assert "maxHashSlotNum=7  # --set" in lines
    assert _invoke(
        serve, "--profile", "dev", "--set", "maxHashSlotNum=7", "--print-config", "--origins"
    ) == (0, out, "")
    without = _invoke(serve, "--print-config")[1].splitlines()
    assert "mappedFileSizeCommitLog=1073741824" in without


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (("--dev",), ""),
        (("--dev", "--set", "namesrvAddr=b:1"), "b:1"),
        (("--profile", "test"), "a:1"),
        ((), "a:1"),
    ],
)
def test_a_try_does_not_join_the_cluster_of_the_shells_clients(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], joined: str
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1")
    code, out, _ = _invoke(serve, *words, "--print-config")
    assert code == 0 and f"namesrvAddr={joined}" in out.splitlines()


def test_a_folder_that_is_refused_has_a_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr(DiskFiles, "make_folder", start)
    settings = (f"storePathRootDir={tmp_path / 'store'}", *SMALL, *PORTS)
    code, _, err = _invoke(serve, *_arguments(settings))
    assert code == 1
    assert f"{tmp_path}: Permission denied; user {os.geteuid()} may not use it: change its" in err


def test_a_place_that_may_not_be_looked_at_is_refused_by_the_start(tmp_path: Path) -> None:
    root = tmp_path / ("x" * 300)  # root may look everywhere, but nobody at such a name
    code, _, err = _invoke(serve, *_arguments((f"storePathRootDir={root}", *SMALL, *PORTS)))
    assert code == 1 and f"{root}: File name too long" in err


def test_print_config_of_a_name_server() -> None:
    code, out, _ = _invoke(namesrv, "--print-config")
    assert code == 0 and "listenPort=9876" in out.splitlines()


def test_a_guessed_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "skylarkmq.broker.ports.interface_addresses", lambda: ["10.0.0.1", "10.0.0.2"]
    )
    settings = (f"storePathRootDir={tmp_path / 'store'}", *SMALL, *PORTS, "bindAddress=0.0.0.0")
    code, _, err = _invoke(serve, *_arguments(settings), "--log-level", "ERROR")
    assert code == 2
    assert "brokerIP1" in err and "10.0.0.1, 10.0.0.2" in err


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (("bindAddress=0.0.0.0",), True),
        (("bindAddress=0.0.0.0", "brokerIP1=10.0.0.1"), False),
        ((), False),
    ],
)
async def test_a_containers_guessed_address_is_warned_about(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    settings: tuple[str, ...],
    warned: bool,
) -> None:
    monkeypatch.setattr("skylarkmq.broker.ports.interface_addresses", lambda: ["10.0.0.1"])
    monkeypatch.setattr("skylarkmq.broker.ports.in_container", lambda: True)
    all_settings = (f"storePathRootDir={tmp_path / 'store'}", *SMALL, *PORTS, *settings)
    controller = BrokerController(load_broker_config(Sources(settings=all_settings)).config)
    await controller.start()
    await controller.stop()
    told = [each.getMessage() for each in caplog.records if "brokerIP1" in each.getMessage()]
    assert len(told) == warned
    assert all("10.0.0.1" in line and "container" in line for line in told)


@pytest.mark.slow
def test_a_changed_key_is_in_the_file_at_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"# mine\nstorePathRootDir={tmp_path / 'store'}\nfileReservedTime=10\n")
    arguments = ("-c", str(file), *_arguments((*SMALL, *PORTS)))
    with _running("serve", *arguments) as (child, fields):
        answers = [_ask(fields["listenAddr"], 25, b"fileReservedTime=20\n")]
        answers += [_ask(fields["listenAddr"], 25, b"maxMessageSize=1000\n")]
        assert [answer.code for answer in answers] == [0, 16]
        assert _stop(child, signal.SIGTERM) == 0
    assert file.read_text() == (
        f"# mine\nstorePathRootDir={tmp_path / 'store'}\nfileReservedTime=20\n"
    )
    printed = subprocess.run(
        [*COMMAND, "serve", *arguments, "--print-config", "--origins"], capture_output=True
    )
    assert f"fileReservedTime=20  # {file} line 3".encode() in printed.stdout


def _ask(address: str, code: int, body: bytes) -> RemotingCommand:
    host, _, port = address.rpartition(":")

    async def ask() -> RemotingCommand:
        client = await RawClient.open((host, int(port)))
        answer = await client.call(code, {}, body)
        await client.close()
        return answer

    return asyncio.run(ask())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_is_under_way(tmp_path: Path, number: signal.Signals) -> None:
    """The signal comes while the store is being loaded, which holds the loop."""
    root = tmp_path / "store"
    settings = (f"storePathRootDir={root}", *SMALL, *PORTS)
    (root / "consumequeue" / "orders").mkdir(parents=True)
    command = f"""
import os, sys
from skylarkmq.store.queue.queue_loader import QueueLoader
load = QueueLoader.load
def loaded(self, **given):
    os.kill(os.getpid(), {int(number)})
    load(self, **given)
QueueLoader.load = loaded
from skylarkmq.broker.cli import serve
serve(sys.argv[1:])
"""
    ended = subprocess.run(
        [sys.executable, "-c", command, *_arguments(settings)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "stopped before the start was over" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (root / "abort").exists()


@pytest.mark.parametrize("command", [serve, namesrv])
def test_a_certificate_that_is_not_there_is_refused_before_the_store(
    tmp_path: Path, command: click.Command
) -> None:
    settings = ["tls.server.certPath=/nowhere.pem", "listenPort=0"]
    if command is serve:
        settings += [f"storePathRootDir={tmp_path / 'store'}", *PORTS[1:]]
    code, _, err = _invoke(command, *_arguments(tuple(settings)))
    why = "skylarkmq: tls.server.certPath=/nowhere.pem: it cannot be read: No such file"
    assert code == 2 and err.splitlines()[-1].startswith(why)
    assert not (tmp_path / "store").exists()
