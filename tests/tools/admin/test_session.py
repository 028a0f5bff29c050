"""What the commands of administration share: questions, targets, watching."""

from __future__ import annotations

import io
import signal
import sys

import click
import pytest

from skylarkmq.client import BrokerError, ConnectionFailed
from skylarkmq.client.admin import Unanswered
from skylarkmq.client.errors import broker_error
from skylarkmq.tools.cluster import NO_ANSWER, PROBLEMS, PROCESSES
from skylarkmq.tools.connection import Change, Session
from skylarkmq.tools.delay import COLUMNS as DELAYED
from skylarkmq.tools.doctor.checks import not_looked_at
from skylarkmq.tools.msg import TRACE_COLUMNS
from skylarkmq.tools.output import Columns, Output, cells, narrow, told_once
from skylarkmq.tools.running import REFUSED, fail, run
from skylarkmq.tools.showing import BODY_MIN
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
    cut = narrow(["ID", "BODY"], rows, 30, fits=BODY_MIN)
    assert cut == ["ID  BODY", "12  " + "x" * 23 + "...", "13  short"]
    assert narrow(["ID", "BODY"], rows, 99)[1] == "12  " + "x" * 60


def test_a_narrow_terminal_gets_shorter_times_and_ids_then_a_line_for_each_field() -> None:
    headers = ["STORED", "QUEUE", "TAG", "MESSAGE ID", "BODY"]
    row = ["2026-01-31 11:53:46.123Z", "broker-a/0", None, MESSAGE_ID, "hello " * 9]
    lines = narrow(headers, [row], 80, fits=BODY_MIN)
    assert lines[0] == "times of 2026-01-31, UTC"
    assert lines[2].startswith("11:53:46.123Z  broker-a/0  7F000001000018B4AAC25A5B3C4D0001  hel")
    assert max(map(len, lines)) == 80
    assert narrow(headers, [row], 74, fits=BODY_MIN)[2].startswith(
        "11:53:46Z  broker-a/0  7F00000100"
    )
    yesterday = ["2026-01-30 11:53:46.123Z", *row[1:]]
    of_two_days = narrow(headers, [row, yesterday], 80, fits=BODY_MIN)
    assert of_two_days[1].startswith("2026-01-31 11:53:46Z  broker-a/0  7F00...3C4D0001  hello")
    assert max(map(len, of_two_days)) == 80
    of_one_year = narrow(headers, [row, yesterday], 64, fits=BODY_MIN)
    assert of_one_year[0] == "times of 2026, UTC"
    assert of_one_year[2].startswith("01-31 11:53:46Z  broker-a/0  7F00...3C4D0001  hello")
    blocks = narrow(headers, [row, yesterday], 30 + BODY_MIN, fits=BODY_MIN)
    assert blocks[:2] == ["STORED      2026-01-31 11:53:46.123Z", "QUEUE       broker-a/0"]
    assert blocks[2] == f"MESSAGE ID  {MESSAGE_ID}", "whole, and without what is empty"
    assert blocks.count("") == 1 and len(blocks) == 9


def test_what_all_rows_have_is_told_once_where_a_table_is_too_wide() -> None:
    headers = ["CLUSTER", "BROKER", "ERROR"]
    rows = [["DefaultCluster", f"broker-{each}", None] for each in "ab"]
    assert narrow(headers, rows, 40)[1] == "DefaultCluster  broker-a  -"
    assert narrow(headers, rows, 25)[1] == "DefaultCluster  broker-a"
    assert narrow(headers, rows, 20) == [
        "of all: CLUSTER", "DefaultCluster", "BROKER", "broker-a", "broker-b",
    ]  # fmt: skip
    assert narrow(headers, rows[:1], 20) == ["CLUSTER  DefaultCluster", "BROKER   broker-a"]


def test_the_wide_tables_of_a_real_cluster_fit_80_columns() -> None:
    names = [f"orders-{each}" for each in ("a", "b", "c")]
    processes = [
        {
            "cluster": "DefaultCluster", "broker": name, "broker_id": each, "address":
            f"192.168.100.{each}:10911", "version": "4.9.8", "log_end": 412_316_860_416 + each,
            "behind": 12_000 * each, "disk_used": 0.455, "error": None,
            "role": "slave" if each else "master",
        }
        for name in names
        for each in (0, 1)
    ]  # fmt: skip
    days = ("2026-01-31", "2026-02-01")
    delayed = [
        {
            "due_at": f"{day}T11:53:46.123+00:00", "due_in_s": 1e5, "topic": "orders-of-europe",
            "level": 0, "tags": "paid", "keys": f"order-{each}",
            "msg_id": MESSAGE_ID[:-1] + str(each % 10),
        }
        for each, day in enumerate(days, 1234567)
    ]  # fmt: skip
    trace = [
        {
            "at": f"{day}T11:53:46.123+00:00", "event": event, "group": "billing-of-europe",
            "client": None, "cost_ms": 12, "result": "exception",
        }
        for day in days
        for event in ("sent (transaction)", "delivered, retry 12")
    ]  # fmt: skip
    up: Columns = {**PROCESSES, "UP": lambda _: "12d03h"}
    for columns, rows in ((up, processes), (DELAYED, delayed), (TRACE_COLUMNS, trace)):
        lines = narrow([*columns], cells(rows, columns), 80)
        assert max(map(len, lines)) <= 80
        assert len(lines) <= len(rows) + 3, "no blocks"


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


def refused(broker: str, remark: str = "no right") -> Unanswered:
    address = f"{broker}:10911"
    return Unanswered(broker, address, BrokerError(1, remark, address))


def test_what_several_brokers_refuse_with_the_same_words_is_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = Output("table", {each: refused(each) for each in "abc"})
    output.tell_unanswered()
    output.tell_unanswered()
    assert capsys.readouterr().err == (
        "warning: without a (a:10911), b (b:10911), c (c:10911), refused: SYSTEM_ERROR(1): "
        "no right\n"
    )
    unlike = {"a": refused("a"), "b": refused("b", "busy")}
    unlike["c"] = Unanswered("c", "c:1", ConnectionFailed("c:1", "gone"))
    Output("table", unlike).tell_unanswered()
    assert capsys.readouterr().err.count("warning: without") == 3
    Output("table", unlike).tell_unanswered(str(unlike["a"].error))
    assert capsys.readouterr().err.count("warning: without") == 2, "the error itself tells one"


def test_doctor_and_cluster_status_have_one_row_for_what_was_refused_with_the_same_words() -> None:
    refusals = [str(refused(each).error) for each in "ab"]
    texts = [*refusals, "c:1: gone", "c:1: gone"]
    found = [not_looked_at(subject, text) for subject, text in zip("abcd", texts, strict=True)]
    rows = told_once([each.to_json() for each in found], "cause")
    assert [each["subject"] for each in rows] == ["a, b", "c", "d"]
    assert rows[0]["cause"] == refusals[0]


def test_what_access_control_refuses_is_one_row_which_says_who_lacks_what() -> None:
    remarks = [
        *(f"Need to read for request code={code}, but accessKey=me has not" for code in (28, 201)),
        "No default permission for topic:orders, account me lacks SUB",
    ]
    rows = [
        {"subject": name, "text": str(broker_error(1, f"x.AclException: {remark}", f"{name}:1"))}
        for name, remark in zip("aab", remarks, strict=True)
    ]
    told = "access control refuses: Need to read, but accessKey=me has not; " + remarks[2]
    assert told_once([*rows, {"subject": "c", "text": "gone"}], "text") == [
        {"subject": "a, b", "text": told},
        {"subject": "c", "text": "gone"},
    ]


def test_what_has_long_sentences_is_a_block_of_lines_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"kind": "k", "subject": "broker-a (master)", "text": "short", "cure": "start it"}
    output = Output("table")
    output.rows([row], PROBLEMS)
    assert capsys.readouterr().out.splitlines() == [
        "KIND  OF                 WHAT   CURE",
        "k     broker-a (master)  short  start it",
    ]
    long = "it does not answer " * 20
    output.parts({}, {"No answer": ([{**row, "text": long}, row], NO_ANSWER)})
    assert capsys.readouterr().out.splitlines() == [
        "No answer", "OF     broker-a (master)", f"ERROR  {long}".rstrip(), "",
        "OF     broker-a (master)", "ERROR  short",
    ]  # fmt: skip


def test_what_a_server_says_cannot_write_over_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fail("no\x1b[2Jsuch\r\ntopic", REFUSED) == REFUSED
    assert capsys.readouterr().err == "error: no [2Jsuch  topic\n"
