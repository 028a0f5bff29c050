"""The commands that the operations guide shows are run as they stand, but for ports and folders.

Pages whose commands another test runs are in `RUN_BY`; what cannot run in a test is in `NOT_RUN`,
with the reason. A command that is new on a page is run, or its test fails until it is named there.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.certificates import Authority
from tests.support.commands import Command, Commands, commands
from tests.support.disk_store import DiskStore
from tests.support.patience import LIMIT_S
from tests.support.ports import free_groups
from tests.support.store_samples import SIZES, put
from tests.tools.command import say

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "operations"
RUN_BY: Final = {
    "backup.md": ("tests/test_backup_page.py", "skylarkmq "),
    "clusters.md": ("tests/test_cluster_page.py", "skylarkmq (namesrv|broker) "),
    "command-line.md": ("tests/test_command_line_page.py", ""),
    "failover.md": ("tests/test_failover_page.py", "(etcd|skylarkmq (namesrv|broker)) "),
    "incidents.md": ("tests/monitoring/test_rules.py", "curl "),
    "kubernetes.md": ("tests/deploy/test_chart.py", "helm "),
    "troubleshooting.md": ("tests/tools/live/test_troubleshooting_page.py", "skylarkmq "),
}
"""Page -> the test that runs its commands, and how those begin."""
NOT_RUN: Final = {
    "docker ": "needs Docker; tests/deploy/test_compose.py starts the files' services without it",
    "promtool ": "needs Debian's prometheus; tests/monitoring/test_prometheus.py runs it",
    "python3 -m venv /opt/": "needs root",
    "/opt/skylarkmq/bin/pip install ": "needs root, and a network",
    "pip install ": "needs a network",
    "useradd ": "needs root",
    "install ": "needs root",
    "systemctl ": "needs systemd; tests/deploy/test_systemd.py checks the unit",
    "skylarkmq drain && systemctl ": "needs systemd; the page has the command itself",
    "time seq ": "a pipe of the shell; tests/tools/live/test_interrupted.py sends lines",
    "skylarkmq mcp": "speaks to an agent; tests/tools/mcp/test_over_stdio.py runs it",
    "skylarkmq serve --brokers 2": "tests/broker/fleet and tests/tools/console/test_cli.py run it",
    "skylarkmq broker --brokers N": "shows that the option exists; N stands for a number",
    "skylarkmq cluster failover ": "needs replicas; tests/tools/admin/test_who_leads.py runs it",
    "skylarkmq group reset ": "needs a group; tests/test_command_line_page.py runs it",
    "kubectl ": "needs Kubernetes",
    "registration with name server ": "is a line of the log",
    "skylarkmq mqadmin updateTopic -c": "names a command of RocketMQ's, without the topic",
}
"""How a command begins, and why it is not run here."""
TOOLS: Final = ("curl", "df", "openssl")
"""Programs of the system; one that is not installed is left out."""
ALONE: Final = 3
EXIT_CODES: Final = {"skylarkmq drain": ALONE}
"""Of commands that end well only with another broker."""

SHOWN = re.compile(r"^ {4,}(\S(?:.*\\\n)*.*)$", re.MULTILINE)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
SHELLS = ("sh", "bash", "console", "text")
INLINE = re.compile(r"`((?:skylarkmq|curl) [^`]+)`")
PORT = re.compile(r"(?:[\w.]+:)?\b(9876|9000|8080|8081|5557|5558)\b")
READY: Final = '"event":"ready"'
BROKER_PORTS = (-2, 1, 8, 10, 11)
"""Those of a broker, or of two in one command, seen from the first listen port."""


def shown_in(text: str) -> list[str]:
    """Return the commands of a page, one line each, without what follows them."""
    found: list[str] = []
    for _, language, body in FENCE.findall(text):
        if language in SHELLS:
            found += [line.removeprefix("$ ") for line in body.splitlines() if line.strip()]
    found += SHOWN.findall(FENCE.sub("", text))
    lines = [re.sub(r"\\\n\s*", "", line) for line in found]
    # A command within a sentence that has no option is a name, and no line to be typed.
    inline = INLINE.findall(FENCE.sub("", text))
    lines += [line for line in inline if re.search(r" -|://", line)]
    return [re.sub(r"\s+#.*", "", line).removeprefix(".venv/bin/").strip() for line in lines]


def of_the_guide() -> dict[str, list[str]]:
    """Return page -> its commands that are for this test."""
    pages = [*sorted(GUIDE.glob("*.md")), ROOT / "docs" / "start" / "docker.md"]
    found = {page.name: shown_in(page.read_text("utf-8")) for page in pages}
    for page, (_, begin) in RUN_BY.items():
        found[page] = [line for line in found[page] if not re.match(begin, line)]
    return found


def is_run(line: str) -> bool:
    """Return whether a command can run in a test."""
    return not any(line.startswith(begin) for begin in NOT_RUN)


def runnable() -> list[str]:
    """Return each command that can run once, in the order of the pages."""
    lines = [line for found in of_the_guide().values() for line in found if is_run(line)]
    return list(dict.fromkeys(lines))


def is_server(line: str) -> bool:
    """Return whether a command runs until it is told to stop."""
    words = shlex.split(line)
    serves = words[1] in ("serve", "broker", "namesrv", "console")
    return words[0] == "skylarkmq" and serves and "--check" not in words


def is_offline(line: str) -> bool:
    """Return whether a command works on files alone."""
    return line.startswith("skylarkmq store ") or line.endswith(" --check")


def variables(folder: Path, *ports: int) -> dict[str, str]:
    """Return the environment of a server: its ports, its folder and small files."""
    listen, names, metrics = ports
    return {
        "SKYLARKMQ_LISTEN_PORT": str(listen),
        "SKYLARKMQ_NAMESRV_LISTEN_PORT": str(names),
        "SKYLARKMQ_METRICS_PROM_EXPORTER_PORT": str(metrics),
        "SKYLARKMQ_STORE_PATH_ROOT_DIR": str(folder),
        "SKYLARKMQ_MAPPED_FILE_SIZE_COMMIT_LOG": str(1 << 24),
    }


def server_variables(folder: Path) -> dict[str, str]:
    """Return the environment of a server on ports of its own."""
    (listen, *_), (names,), (metrics, *_) = free_groups(BROKER_PORTS, (), (1, 2))
    return variables(folder, listen, names, metrics)


def on_ports(line: str, ports: Mapping[str, int]) -> list[str]:
    """Return the words of a command, with every address on loopback and on another port."""

    def other(found: re.Match[str]) -> str:
        host = "127.0.0.1:" if ":" in found[0] else ""
        return f"{host}{ports[found[1]]}"

    words = [PORT.sub(other, word) for word in shlex.split(line)]
    return words[1:] if words[0] == "skylarkmq" else words


def test_every_command_of_the_guide_is_run_or_has_its_reason() -> None:
    found = of_the_guide()
    known = ("skylarkmq", *TOOLS)
    for page, lines in found.items():
        for line in lines:
            if is_run(line):
                assert line.split()[0] in known, f"{page}: no test runs `{line}`: add it to NOT_RUN"
    everything = [line for lines in found.values() for line in lines]
    for begin in NOT_RUN:
        assert any(line.startswith(begin) for line in everything), f"no page shows {begin!r}"
    assert {line for line in EXIT_CODES if line not in everything} == set()
    assert len(runnable()) > 25
    for page, (module, _) in RUN_BY.items():
        assert (GUIDE / page).exists()
        assert page in (ROOT / module).read_text("utf-8")


def test_a_page_is_read_as_a_reader_does() -> None:
    page = (
        "Text with `skylarkmq drain --undo` and `skylarkmq drain`.\n\n    one --a \\\n"
        "        --b   # why\n    two\n\n1. Step:\n\n       .venv/bin/three\n"
        "   goes on\n\n```ini\nfour\n```\n\n```sh\n$ five\n```\n"
    )
    expected = ["five", "one --a --b", "two", "three", "skylarkmq drain --undo"]
    assert shown_in(page) == expected


def test_those_that_work_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = DiskStore(tmp_path / "var" / "store", SIZES)
    store.start()
    store.run(put("TopicTest", 0, "a message"))
    store.stop()
    (tmp_path / "var" / "store" / "skylarkmq" / "pop").mkdir(parents=True)  # as a broker does
    (tmp_path / "broker.conf").write_text("brokerName=broker-a\n")
    lines = [line for line in runnable() if is_offline(line)]
    assert len(lines) >= 7
    for line in lines:
        words = shlex.split(line.replace("/backup/", f"{tmp_path}/backup/"))[1:]
        own = {} if words[0] == "store" else server_variables(tmp_path / "new" / "store")
        said = say(words, variables={**own, "NAMESRV_ADDR": None})
        assert said.code == 0, (line, said)


async def start(processes: Commands, line: str, folder: Path, ports: dict[str, int]) -> Command:
    """Run a server of the guide; it is not ready yet."""
    words = on_ports(line.replace("/etc/rocketmq/", f"{folder}/"), ports)
    if words[0] == "console":
        words += [] if "--listen" in words else ["--listen", str(ports["8080"])]
        return await processes.start(*words)
    if words[-1] == "--console":
        words.append(str(ports["8080"]))
    store = folder / f"store-{len(processes.all)}"
    return await processes.start(*words, env=server_variables(store))


def run(words: list[str], namesrv: str) -> tuple[int, object]:
    """Run a command that asks a server; return its exit code, and what it said."""
    if words[0] not in TOOLS:
        said = say(words, variables={"NAMESRV_ADDR": namesrv})
        return said.code, said
    words = [*words, "--silent", "--fail"] if words[0] == "curl" else words
    ended = subprocess.run(words, capture_output=True, check=False, timeout=LIMIT_S)
    return ended.returncode, ended


@pytest.mark.slow
@pytest.mark.timing
async def test_those_that_serve(tmp_path: Path) -> None:
    lines = [line for line in runnable() if is_server(line)]
    assert len(lines) >= 11
    (tmp_path / "broker.conf").write_text("brokerName=broker-a\n")
    pem = Authority(tmp_path).certificate_file("localhost")
    for name in ("broker.pem", "broker.key"):  # both parts are in one file
        shutil.copy(pem, tmp_path / name)
    (names,), *pages = free_groups((), *[()] * len(lines))
    async with commands(tmp_path) as processes:
        started: list[tuple[str, str, Command]] = []
        for line, (page,) in zip(lines, pages, strict=True):
            ports = {"9876": names, "9000": page, "8080": page, "8081": page}
            shown = f":{page}/" if "console" in line else READY
            started.append((line, shown, await start(processes, line, tmp_path, ports)))
        for line, shown, process in started:

            def is_ready(shown: str = shown, process: Command = process) -> bool:
                return shown in process.output

            await processes.until(is_ready, f"`{line}`")
        await asyncio.gather(*(process.stop() for _, _, process in started))
        codes = {line: process.process.returncode for line, _, process in started}
        assert set(codes.values()) == {0}, codes


@pytest.mark.slow
@pytest.mark.timing
def test_those_that_ask_a_server(tmp_path: Path) -> None:
    lines = [line for line in runnable() if not is_server(line) and not is_offline(line)]
    assert len(lines) >= 8
    (tmp_path / "broker.conf").write_text("brokerName=broker-a\n")
    (listen, *_), (names,), (metrics,) = free_groups(BROKER_PORTS, (), ())
    ports = {"9876": names, "5557": metrics, "5558": metrics}
    Authority(tmp_path).certificate_file("localhost").rename(tmp_path / "broker.pem")
    env = variables(tmp_path / "store", listen, names, metrics)
    processes = Commands(tmp_path)
    with asyncio.Runner() as runner:  # the commands asked have loops of their own
        serve = runner.run(processes.start("serve", "-c", "broker.conf", env=env))
        try:
            runner.run(processes.until(lambda: READY in serve.output, "the broker"))
            for line in lines:
                words = on_ports(line.replace("/etc/rocketmq/", f"{tmp_path}/"), ports)
                if words[0] in TOOLS and shutil.which(words[0]) is None:
                    continue
                if words[0] in ("health", "drain"):
                    words += ["--address", f"127.0.0.1:{metrics}"]
                if words[:2] == ["config", "set"]:
                    words.append("--yes")  # nobody can be asked here
                if words[:2] == ["cluster", "health"]:
                    words += ["--disk-max", "1"]  # how full this machine is does not matter
                code, said = run(words, f"127.0.0.1:{names}")
                assert code == EXIT_CODES.get(line, 0), (line, said)
        finally:
            runner.run(processes.stop())
