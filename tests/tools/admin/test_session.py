"""What the commands of administration share: questions, targets, watching."""

from __future__ import annotations

import signal
import sys

import click
import pytest

from skylarkmq.client import ConnectionFailed
from skylarkmq.tools.connection import Change, Session
from skylarkmq.tools.output import Output, fitting
from skylarkmq.tools.running import run
from skylarkmq.tools.watching import Watch

SESSION = Session("127.0.0.1:1", "--namesrv", None, None, None, 1.0, Output("json"))


def test_ctrl_c_ends_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own handler would take the signal and wait for the answer all the same."""

    def asked(*_: object, **__: object) -> None:
        handler = signal.getsignal(signal.SIGINT)
        assert callable(handler)
        handler(signal.SIGINT, None)  # as the signal would, but here and nowhere else
        pytest.fail("the question goes on")

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", asked)

    async def work() -> int:
        with pytest.raises(KeyboardInterrupt):
            Change(dry_run=False, yes=False).allowed("delete the topic orders")
        return 7

    with pytest.raises(SystemExit) as ended:
        run(work)
    assert ended.value.code == 7


def test_names_of_others_cannot_write_over_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"client_id": "me\x1b[2J\r", "brokers": ["a\n", "b\x9b"], "none": ""}
    Output("table").rows([row])
    Output("table").one(row)
    shown = capsys.readouterr().out
    assert shown.count("me [2J") == 2 and shown.count("a , b ") == 2
    assert not any(each in shown for each in "\x1b\r\x9b") and shown.count("\n") == 2 + 3


async def test_a_watch_goes_on_while_a_server_is_started_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers: list[int | ConnectionFailed] = [
        1,
        ConnectionFailed("127.0.0.1:1", "gone for a while"),
        2,
    ]
    shown: list[int] = []

    async def ask() -> int:
        answer = answers.pop(0)
        if isinstance(answer, ConnectionFailed):
            raise answer
        return answer

    watch = Watch(on=True, every_s=0.001, times=3)
    assert await watch.look(SESSION, ask, lambda found, _: shown.append(found)) == 2
    assert shown == [1, 2]
    assert "warning: 127.0.0.1:1: gone for a while" in capsys.readouterr().err
    assert watch.output(SESSION).form == "ndjson"


@pytest.mark.parametrize("watch", [Watch(False, 0.001, None), Watch(True, 0.001, 5)])
async def test_a_first_look_that_fails_ends_a_watch(watch: Watch) -> None:
    async def ask() -> int:
        raise ConnectionFailed("127.0.0.1:1", "nobody there")

    def show(_: int, __: Output) -> None:
        pytest.fail("there is nothing to show")

    with pytest.raises(ConnectionFailed):
        await watch.look(SESSION, ask, show)


def test_the_last_column_is_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["ID  BODY", "12  " + "x" * 60, "13  short"]
    monkeypatch.setenv("COLUMNS", "30")
    assert fitting(lines, 4) == ["ID  BODY", "12  " + "x" * 23 + "...", "13  short"]
    monkeypatch.setenv("COLUMNS", "5")
    assert fitting(lines, 4)[1] == "12  " + "x" * 13 + "...", "some of it is always shown"
