"""Inputs that reach new lines are kept and changed further, until nothing new is found.

    guided = Guided(run, folders, corpus, rng)
    guided.explore(500)
    guided.corpus        # what was given, and what reached something new

`run` takes one input. What counts as new is a step from one line of our code to another, within a
function, that no input before took. The tracing costs a few times the run itself.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

from skylarkmq.protocol.frame import BadFrameError, FrameDecoder

Step = tuple[CodeType, int, int]
SIZE_MAX = 4096  # bytes of an input that is kept
WORDS = (
    b"-1", b"0", b"2147483648", b"9223372036854775807", b"-9223372036854775808", b"true",
    b"null", b"\x01", b"\x02", b"\x00", b"..", b"%RETRY%", b"%DLQ%", b"TRAN_MSG\x01true\x02",
    b"{", b"}", b"[", b"DELAY\x013\x02", b"TIMER_DELAY_SEC\x011\x02",
    b"TIMER_DELIVER_MS\x011\x02", b"WAIT\x01false\x02", b"UNIQ_KEY\x01K\x02", b"TBW102",
    b"rmq_sys_wheel_timer", b"SCHEDULE_TOPIC_XXXX", b"SQL92", b"a > 1 AND b IS NOT NULL",
    b"'x' IN ('y')", b"*", b"a || b", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff",
)  # fmt: skip


class Guided:
    """Explores a function by its inputs."""

    def __init__(
        self,
        run: Callable[[bytes], object],
        folders: Iterable[Path],
        corpus: Iterable[bytes],
        rng: Random,
    ) -> None:
        self._run = run
        self._folders = tuple(f"{folder.resolve()}/" for folder in folders)
        self._ours: dict[CodeType, bool] = {}
        self._rng = rng
        self._steps: set[Step] = set()
        self._found: set[Step] = set()
        self.corpus: list[bytes] = []
        for data in corpus:
            self.take(data)

    @property
    def step_count(self) -> int:
        """Different steps that were taken so far."""
        return len(self._steps)

    def take(self, data: bytes) -> bool:
        """Run one input and keep it when it took a new step."""
        self._found = set()
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            self._run(data)
        except Exception as error:
            raise AssertionError(f"{data.hex()} ({data[:200]!r})") from error
        finally:
            sys.settrace(before)
        new = self._found - self._steps
        self._steps |= new
        if new and len(data) <= SIZE_MAX:
            self.corpus.append(data)
        return bool(new)

    def explore(self, count: int) -> int:
        """Try changes of what is kept; how many were new."""
        return sum(self.take(self._changed()) for _ in range(count))

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            path = str(Path(code.co_filename).resolve())  # modules are imported over links
            ours = self._ours[code] = path.startswith(self._folders)
        if not ours:
            return None
        last = 0
        found = self._found

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                number = frame.f_lineno
                found.add((code, last, number))
                last = number
            return line

        return line

    # Changes

    def _changed(self) -> bytes:
        rng = self._rng
        data = rng.choice(self.corpus[-50:] if rng.random() < 0.3 else self.corpus)
        for _ in range(rng.choice((1, 1, 2, 4))):
            change = rng.choice((self._in_header, self._in_header, self._in_body, self._bytes))
            data = change(data)
        return data[: 2 * SIZE_MAX]

    def _bytes(self, data: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(6)
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        if kind == 5:
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        if kind == 1:
            return data[:at] + rng.choice(WORDS) + data[at:]
        if kind == 2:
            return data[:at] + data[at + rng.randrange(1, 20) :]
        if kind == 3:
            return data + rng.choice(self.corpus)
        other = rng.choice(self.corpus)
        return data[:at] + other[rng.randrange(len(other) + 1) :]

    def _in_header(self, data: bytes) -> bytes:
        """Another code, or another value of a field, in a frame that stays sound."""
        frame = self._frame(data)
        if frame is None:
            return self._bytes(data)
        kind, header, body = frame
        try:
            command = json.loads(header)
            fields = command.setdefault("extFields", {})
            name = self._rng.choice(list(fields))
        except (ValueError, AttributeError, IndexError, TypeError, UnicodeDecodeError):
            return _framed(kind, self._bytes(header), body)
        if self._rng.random() < 0.2:
            command["code"] = self._some_code()
        else:
            fields[name] = self._text(str(fields[name]))
        return _framed(kind, json.dumps(command).encode(), body)

    def _in_body(self, data: bytes) -> bytes:
        frame = self._frame(data)
        if frame is None:
            return self._bytes(data)
        kind, header, body = frame
        return _framed(kind, header, self._bytes(body))

    def _frame(self, data: bytes) -> tuple[int, bytes, bytes] | None:
        try:
            frames = FrameDecoder().feed(data)
        except BadFrameError as error:
            frames = error.frames
        return self._rng.choice(frames) if frames else None

    def _some_code(self) -> int:
        """The code of another input."""
        for _ in range(5):
            frame = self._frame(self._rng.choice(self.corpus))
            if frame is not None:
                try:
                    return int(json.loads(frame[1])["code"])
                except (ValueError, KeyError, TypeError, UnicodeDecodeError):
                    continue
        return 310

    def _text(self, text: str) -> str:
        rng = self._rng
        word = rng.choice(WORDS).decode("latin-1")
        at = rng.randrange(len(text) + 1)
        longer, shorter = text[:at] + word + text[at:], text[:at] + text[at + 1 :]
        return rng.choice((word, longer, shorter, text * 2))


def _framed(kind: int, header: bytes, body: bytes) -> bytes:
    word = (kind & 0xFF) << 24 | len(header) & 0xFFFFFF
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body
