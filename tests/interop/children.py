"""Child processes: their lines as they come, their end by pid, their output when one fails."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.patience import LIMIT_S

Event = dict[str, Any]

SHOWN_LINES = 40


class ChildFailedError(AssertionError):
    """A child did not do what was waited for; carries the end of its output."""


class Child:
    """A process whose standard output is read line by line; standard error goes to a file, or
    into the same lines.

    Lines that are JSON objects are events. The reader is a thread of its own, named after the
    child; everything else is called by the test's thread.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        *,
        one_stream: bool = False,
    ) -> None:
        self.name = name
        self.lines: list[str] = []
        self._errors = folder / f"{name}.stderr"
        self._changed = threading.Condition()
        self._ended = False
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if one_stream else errors,
                cwd=folder,
            )
        self._reader = threading.Thread(target=self._read, name="child-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def events(self) -> list[Event]:
        """All events so far."""
        with self._changed:
            lines = list(self.lines)
        return [json.loads(line) for line in lines if line.startswith("{")]

    def named(self, event: str) -> list[Event]:
        """The events of one name so far."""
        return [fields for fields in self.events if fields.get("event") == event]

    def wait_for(self, what: str, met: Callable[[], Any], wait_s: float = LIMIT_S) -> Any:
        """Return what `met` returns once it is true; it is asked again after every line."""
        with self._changed:
            self._changed.wait_for(lambda: met() or self._ended, wait_s)
        result = met()  # asked after the end too: the last line may have been it
        if not result:
            self.fail(f"waited for {what}")
        return result

    def event(self, name: str) -> Event:
        """The first event of this name, waited for."""
        found: list[Event] = self.wait_for(name, lambda: self.named(name))
        return found[0]

    def count(self, name: str, at_least: int) -> list[Event]:
        """Wait for so many events of one name and return all that have come."""
        found: list[Event] = self.wait_for(
            f"{at_least} x {name}",
            lambda: found if len(found := self.named(name)) >= at_least else None,
        )
        return found

    def say(self, line: str = "") -> None:
        """Write a line to standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def finish(self) -> None:
        """End standard input, which asks the programs here to stop, and wait for a clean end."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            code = self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.fail("did not stop")
        self._reader.join(LIMIT_S)
        if code:
            self.fail(f"ended with {code}")

    def kill(self) -> None:
        """End the process without a warning."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, and SIGKILL when that is not heeded. Return the exit code."""
        self._end(signal.SIGTERM)
        return self.process.returncode

    def fail(self, why: str) -> None:
        """Raise with the end of what the child has printed."""
        state = self.process.poll()
        text = f"{self.name} (pid {self.pid}, exit {state}): {why}\n{self.tail()}"
        raise ChildFailedError(text)

    def tail(self, lines: int = SHOWN_LINES) -> str:
        """The end of what the child has printed."""
        errors = self._errors.read_text(errors="replace").splitlines()
        parts = ["--- standard output", *self.lines[-lines:], "--- standard error"]
        return "\n".join([*parts, *errors[-lines:]])

    def _end(self, with_signal: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
            try:
                self.process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        if self.process.stdin:
            self.process.stdin.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                with self._changed:
                    self.lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Children:
    """Starts children in one folder and ends them all, the last started first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Child] = []

    def start(self, name: str, command: Sequence[str], *, one_stream: bool = False) -> Child:
        child = Child(f"{name}-{len(self.all)}", command, self.folder, one_stream=one_stream)
        self.all.append(child)
        return child

    def stop_all(self) -> None:
        for child in reversed(self.all):
            child.stop()


class Several:
    """Servers of one test, each with a folder of its own for its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._children: list[Children] = []

    def new(self, name: str) -> Children:
        """Return a folder for processes that end with the others."""
        folder = self._folder / name
        folder.mkdir()
        self._children.append(Children(folder))
        return self._children[-1]

    def end(self) -> None:
        """Leave no process behind; nobody will look at the stores any more."""
        for children in self._children:
            for child in children.all:
                child.kill()

    def tail(self, lines: int) -> list[tuple[str, str]]:
        """Return what each process printed last."""
        return [(child.name, child.tail(lines)) for each in self._children for child in each.all]
