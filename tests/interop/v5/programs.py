"""RocketMQ's clients of the gRPC protocol in four languages: each program takes commands from
standard input and prints events, a JSON object a line.

A command has `do` (producer, push, simple, send, recall, receive, ack, change, close), `seq`, and
`id`, the name of the client that it makes or uses; its answer is the event `done` or `failed` of
the same `seq`. Between them come `message` events of push consumers, `finished` ones when their
listener returns, and `check` events of transactional producers. One process has many clients; in
Go it uses TLS as a whole or not at all.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.children import Child, Children, Event
from tests.interop.java import java, missing
from tests.support.patience import until_sync

HERE = Path(__file__).resolve().parent
JAVA, NODE, GO, PYTHON = HERE / "java", HERE / "node", HERE / "go", HERE / "python"
BUILT = HERE.parents[2] / "var" / "interop-v5"
"""Python's packages and the Go program."""
LANGUAGES = ("java", "python", "node", "go")
BUILD_S = 900
STARTS = 3
"""A sound start takes longer than the clients' 3 s beside other work."""
AWAIT_MS = 5000
"""How long a receive waits for messages; Java takes no less than the server's shortest poll."""
INVISIBLE_MS = 10_000
"""The shortest that a receive may ask for."""


class Place(NamedTuple):
    """Where clients connect to, and as whom."""

    endpoint: str  # host:port, several separated by ;
    tls: bool = False
    ca_file: str = ""
    key: str = ""
    secret: str = ""


class CallFailedError(AssertionError):
    """A command that failed; `code` is the server's, 0 for none."""

    def __init__(self, event: Event) -> None:
        super().__init__(event["error"])
        told = re.search(r"response-code=(\d+)|[Cc]ode[^\d]{1,3}(\d{5})", event["error"])
        self.code = int(event.get("code") or (told and (told[1] or told[2])) or 0)


class Program:
    """One process of a language, and the clients that it has been told to make."""

    def __init__(self, children: Children, language: str, place: Place) -> None:
        if why := _absent(language):
            pytest.skip(why)
        self.language = language
        self.place = place
        self._numbers = itertools.count(1)
        self._open: list[str] = []
        self._start = lambda: children.start(
            f"v5-{language}", _command(language, children.folder, place)
        )
        self.child: Child = self._start()

    def producer(self, topic: str, check: str = "") -> Producer:
        """Make a producer; with `check`, "commit", "rollback" or "unknown", it answers checks."""
        return Producer(self, self._make("producer", topic=topic, check=check), topic)

    def works(self, topic: str, group: str) -> None:
        """Send, and consume what was sent."""
        sent = self.producer(topic).send(f"m of {group}")
        found = self.push(topic, group).until(f"m of {group}")
        assert [one["body"] for one in found if one["message_id"] == sent["message_id"]]

    def push(
        self,
        topic: str,
        group: str,
        *,
        tag: str = "*",
        sql: str = "",
        fail: int = 0,
        slow_ms: int = 0,
    ) -> PushConsumer:
        """Make a push consumer; it fails each message so many times, and is that slow."""
        settings = {"tag": tag, "sql": sql, "fail": fail, "slow_ms": slow_ms}
        return PushConsumer(self, self._make("push", topic=topic, group=group, **settings))

    def simple(self, topic: str, group: str, *, tag: str = "*", sql: str = "") -> SimpleConsumer:
        """Make a simple consumer."""
        settings = {"tag": tag, "sql": sql, "await_ms": AWAIT_MS}
        return SimpleConsumer(self, self._make("simple", topic=topic, group=group, **settings))

    def call(self, do: str, client: str, **fields: object) -> Event:
        """Give a command and return its answer.

        Raises:
            CallFailedError: with what the client said.
        """
        return self.answer(self.begin(do, client, **fields))

    def begin(self, do: str, client: str, **fields: object) -> int:
        """Give a command and return its number, for `answer`."""
        seq = next(self._numbers)
        self.child.say(json.dumps({"do": do, "seq": seq, "id": client, **fields}))
        return seq

    def answer(self, seq: int) -> Event:
        """Wait for the answer to a command and return it."""
        event: Event = self.child.wait_for(
            f"the answer to command {seq}",
            lambda: next((one for one in self.child.events if one.get("seq") == seq), None),
        )
        if event["event"] == "failed":
            raise CallFailedError(event)
        return event

    def forget(self, client: str) -> None:
        """A client is closed by its user."""
        self._open.remove(client)

    def close_clients(self) -> None:
        """Have what a test has left open stop in its own time: some wait for open receives."""
        left, self._open = self._open, []
        for client in left:
            self.begin("close", client)

    def _make(self, do: str, **fields: object) -> str:
        client = f"c{next(self._numbers)}"
        where = {
            "endpoint": self.place.endpoint,
            "tls": self.place.tls,
            "key": self.place.key,
            "secret": self.place.secret,
        }
        for _ in range(STARTS - 1):
            try:
                self.call(do, client, **where, **fields)
                break
            except CallFailedError as error:
                if "DEADLINE" not in str(error):
                    raise
        else:
            self.call(do, client, **where, **fields)
        self._open.append(client)
        return client


class _Client:
    def __init__(self, program: Program, name: str) -> None:
        self._program = program
        self.name = name

    def close(self) -> None:
        """Stop it in an orderly way."""
        self._program.forget(self.name)
        self._program.call("close", self.name)

    def _events(self, name: str) -> list[Event]:
        return [one for one in self._program.child.named(name) if one["id"] == self.name]

    def _count(self, name: str, at_least: int) -> list[Event]:
        found: list[Event] = self._program.child.wait_for(
            f"{at_least} x {name}",
            lambda: found if len(found := self._events(name)) >= at_least else None,
        )
        return found


class Producer(_Client):
    """Sends to one topic."""

    def __init__(self, program: Program, name: str, topic: str) -> None:
        super().__init__(program, name)
        self.topic = topic

    def send(
        self,
        body: str,
        *,
        tag: str = "",
        key: str = "",
        message_group: str = "",
        priority: int = -1,
        delay_ms: int = 0,
        transaction: str = "",
        properties: dict[str, str] | None = None,
    ) -> Event:
        """Send a message; `transaction` is "commit", "rollback" or "none" (neither). Return its
        `message_id`, and `recall_handle` where the client tells it.
        """
        return self._program.call(
            "send",
            self.name,
            topic=self.topic,
            body=body,
            tag=tag,
            key=key,
            message_group=message_group,
            priority=priority,
            delay_ms=delay_ms,
            transaction=transaction,
            properties=properties or {},
        )

    def send_surely(self, body: str) -> None:
        """Send as an application does that goes on after errors, until it has succeeded."""

        def is_sent() -> bool:
            try:
                self.send(body)
            except CallFailedError:
                return False
            return True

        until_sync(is_sent, f"a send of {body}")

    def recall(self, handle: str) -> Event:
        """Take a delayed message back."""
        return self._program.call("recall", self.name, topic=self.topic, handle=handle)

    def checks(self, at_least: int) -> list[Event]:
        """Wait until the server has asked about so many transactions."""
        return self._count("check", at_least)


class PushConsumer(_Client):
    """Its listener prints what it gets."""

    @property
    def messages(self) -> list[Event]:
        """What has come."""
        return self._events("message")

    def count(self, at_least: int) -> list[Event]:
        """Wait for so many messages."""
        return self._count("message", at_least)

    def finished(self, at_least: int) -> None:
        """Wait until the listener has returned so often."""
        self._count("finished", at_least)

    def until(self, *bodies: str) -> list[Event]:
        """Wait until each of these has come, and return all that has."""

        def met() -> list[Event] | None:
            found = self.messages
            return found if {one["body"] for one in found} >= set(bodies) else None

        found: list[Event] = self._program.child.wait_for(f"{len(bodies)} bodies", met)
        return found


class SimpleConsumer(_Client):
    """Receives, and acknowledges one by one."""

    def receive(self, count: int = 16, invisible_ms: int = INVISIBLE_MS) -> list[Event]:
        """Ask once; nothing after AWAIT_MS is an empty list."""
        answer = self._program.call("receive", self.name, count=count, invisible_ms=invisible_ms)
        found: list[Event] = answer["messages"]
        return found

    def received(
        self, at_least: int, invisible_ms: int = INVISIBLE_MS, tries: int = 30
    ) -> list[Event]:
        """Ask until so many have come."""
        found: list[Event] = []
        while len(found) < at_least:
            assert (tries := tries - 1) >= 0, f"{len(found)} of {at_least} came"
            try:
                found += self.receive(invisible_ms=invisible_ms)
            except CallFailedError as error:
                # RocketMQ's proxy fails until it has the settings, for which Python does not wait.
                if '"settings" is null' not in str(error):
                    raise
        return found

    def ack(self, message: Event) -> None:
        """It is done."""
        self._program.call("ack", self.name, number=message["number"])

    def change(self, message: Event, invisible_ms: int) -> None:
        """Let it come again after that time, from now."""
        self._program.call("change", self.name, number=message["number"], invisible_ms=invisible_ms)


def _command(language: str, folder: Path, place: Place) -> list[str]:
    """The command that starts a program, with its environment."""
    environment = {"HOME": str(folder)}
    if language == "java":
        options = ("-Xmx128m", f"-Duser.home={folder}", "-Drocketmq.log.level=WARN")
        command = java(JAVA, "skylarkmq.interop.v5.Client", options=options)
    elif language == "python":
        environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = place.ca_file
        command = [sys.executable, str(PYTHON / "client.py"), str(BUILT / "python")]
    elif language == "node":
        environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = place.ca_file
        command = ["node", str(NODE / "client.js")]
    else:
        environment["rocketmq.client.enableSsl"] = str(place.tls).lower()
        environment["rocketmq.client.logRoot"] = str(folder)
        command = [str(BUILT / "go-client")]
    return ["env", *(f"{name}={value}" for name, value in environment.items() if value), *command]


@cache
def _absent(language: str) -> str:
    """Build or install a program if need be; why that is not possible, or nothing."""
    if language == "java":
        return missing()
    needed = {"python": (), "node": ("node", "npm"), "go": ("go",)}[language]
    if absent := [name for name in needed if shutil.which(name) is None]:
        return f"not installed: {', '.join(absent)}"
    if language == "python":
        source, stamp = PYTHON / "requirements.txt", BUILT / "python" / "installed.txt"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target"]
        command += [str(stamp.parent), "-r", str(source)]
        _install(command, PYTHON, [source], stamp)
    elif language == "node":
        stamp = NODE / "node_modules" / "installed.txt"
        _install(["npm", "ci", "--ignore-scripts"], NODE, [NODE / "package-lock.json"], stamp)
    else:
        command = ["go", "build", "-o", str(BUILT / "go-client"), "."]
        sources = [GO / name for name in ("main.go", "go.mod", "go.sum")]
        _install(command, GO, sources, BUILT / "go-client.txt")
    return ""


def _install(command: list[str], folder: Path, sources: list[Path], stamp: Path) -> None:
    """Run a command unless it has succeeded with the same sources."""
    wanted = "".join(source.read_text() for source in sources)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(wanted)
