"""What the commands of administration share: questions, targets, watching."""

from __future__ import annotations

import io
import signal
import sys

import click
import pytest

from skylarkmq.client import ConnectionFailed
from skylarkmq.tools.connection import Change, Session
from skylarkmq.tools.output import LAST_MIN, Output, narrow
from skylarkmq.tools.running import REFUSED, fail, run
from skylarkmq.tools.watching import Watch

MESSAGE_ID = "7F000001000018B4AAC25A5B3C4D0001"
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


def test_the_last_column_is_cut_to_the_terminal() -> None:
    rows = [[12, "x" * 60], [13, "short"]]
    cut = narrow(["ID", "BODY"], rows, 30, fits=True)
    assert cut == ["ID  BODY", "12  " + "x" * 23 + "...", "13  short"]
    assert narrow(["ID", "BODY"], rows, 99)[1] == "12  " + "x" * 60


def test_a_narrow_terminal_gets_shorter_times_and_ids_then_a_line_for_each_field() -> None:
    headers = ["STORED", "QUEUE", "TAG", "MESSAGE ID", "BODY"]
    row = ["2026-01-31 11:53:46.123Z", "broker-a/0", None, MESSAGE_ID, "hello " * 9]
    lines = narrow(headers, [row], 80, fits=True)
    assert lines[0] == "times of 2026-01-31, UTC"
    assert lines[2].startswith("11:53:46Z  broker-a/0  -    7F000001000018B4AAC25A5B3C4D0001  hel")
    assert max(map(len, lines)) == 80
    yesterday = ["2026-01-30 11:53:46.123Z", *row[1:]]
    of_two_days = narrow(headers, [row, yesterday], 80, fits=True)
    assert of_two_days[1].startswith("2026-01-31 11:53:46Z  broker-a/0  -    7F00...3C4D0001  hel")
    assert max(map(len, of_two_days)) == 80
    blocks = narrow(headers, [row, yesterday], 30 + LAST_MIN, fits=True)
    assert blocks[:2] == ["STORED      2026-01-31 11:53:46.123Z", "QUEUE       broker-a/0"]
    assert blocks[2] == f"MESSAGE ID  {MESSAGE_ID}", "whole, and without what is empty"
    assert blocks.count("") == 1 and len(blocks) == 9


@pytest.mark.parametrize("is_terminal", [True, False])
def test_only_a_terminal_makes_a_table_narrow(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "39")
    Output("table").rows([{"id": MESSAGE_ID, "name": "a name"}])
    assert (MESSAGE_ID in stream.getvalue()) is not is_terminal


def test_what_a_server_says_cannot_write_over_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fail("no\x1b[2Jsuch\r\ntopic", REFUSED) == REFUSED
    assert capsys.readouterr().err == "error: no [2Jsuch  topic\n"
