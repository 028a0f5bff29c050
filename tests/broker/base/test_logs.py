"""Log lines: text for people, one JSON object a line for machines."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from skylarkmq.broker.base.logs import (
    FIELDS,
    LINES_MAX,
    TEXT_FORMAT,
    JsonFormatter,
    LogFormat,
    RateLimit,
    TextFormatter,
    chosen_format,
    parse_levels,
    set_levels,
    set_up_logs,
)


def _record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("skylarkmq.x", logging.INFO, __file__, 1, message, args, None)
    record.created = 1_700_000_000.5
    for name, value in extra.items():
        setattr(record, name, value)
    return record


def test_a_line_is_one_json_object() -> None:
    text = JsonFormatter("broker-a").format(_record("took %d\nms", 5, **{FIELDS: {"code": 34}}))
    assert "\n" not in text
    assert list(json.loads(text).items()) == [
        ("ts", "2023-11-14T22:13:20.500Z"),
        ("level", "INFO"),
        ("logger", "skylarkmq.x"),
        ("msg", "took 5\nms"),
        ("broker", "broker-a"),
        ("code", 34),
    ]


def test_without_a_broker_its_name_is_left_out() -> None:
    assert "broker" not in json.loads(JsonFormatter().format(_record("x")))


def test_the_line_of_a_replica_names_its_id_after_the_broker() -> None:
    line = json.loads(JsonFormatter("broker-a", 2).format(_record("x", **{FIELDS: {"code": 34}})))
    assert list(line.items())[-3:] == [("broker", "broker-a"), ("brokerId", 2), ("code", 34)]


def test_an_exception_stays_within_its_line() -> None:
    record = _record("failed")
    try:
        raise ValueError("why")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["err"].endswith("ValueError: why")


def test_values_that_json_does_not_know_are_shown_as_text() -> None:
    text = JsonFormatter().format(_record("x", **{FIELDS: {"error": OSError(5, "io")}}))
    assert json.loads(text)["error"] == "[Errno 5] io"


@pytest.fixture
def own_logs() -> Iterator[None]:
    """What the test sets up is taken away again."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    set_levels("WARNING")
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logs_go_to_stderr(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(log_format, "WARNING")
    logging.getLogger("skylarkmq.x").info("quiet")
    logging.getLogger("skylarkmq.x").warning("loud")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loud" in captured.err and "quiet" not in captured.err
    assert captured.err.startswith("{") is (log_format == "json")


@pytest.mark.usefixtures("own_logs")
@pytest.mark.parametrize(
    ("broker_id", "shares_stream", "named"),
    [
        (0, False, "INFO     skylarkmq.x: hello"),
        (0, True, "INFO     a%d skylarkmq.x: hello"),
        (2, False, "INFO     a%d:2 skylarkmq.x: hello"),
        (2, True, "INFO     a%d:2 skylarkmq.x: hello"),
    ],
)
def test_the_text_form_names_a_broker_that_is_one_of_several(
    broker_id: int, shares_stream: bool, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logs("text", "INFO", "a%d", broker_id, shares_stream=shares_stream)
    logging.getLogger("skylarkmq.x").info("hello")
    assert capsys.readouterr().err.endswith(f" {named}\n")


def test_a_flood_of_one_kind_is_cut_and_counted() -> None:
    limit = RateLimit()
    passed = [limit.filter(_record("closing %s", number)) for number in range(100)]
    assert passed.count(True) == LINES_MAX
    assert limit.filter(_record("something else"))
    later = _record("closing %s", "peer")
    later.created += 1
    assert limit.filter(later)
    assert later.getMessage() == "closing peer (80 lines like this were left out)"
    after = _record("closing %s", "peer")
    after.created += 1
    assert limit.filter(after)
    assert after.getMessage() == "closing peer"


@pytest.mark.usefixtures("own_logs")
def test_levels_of_parts_change_while_the_process_runs(capsys: pytest.CaptureFixture[str]) -> None:
    part, other = logging.getLogger("skylarkmq.part.inner"), logging.getLogger("skylarkmq.other")
    set_up_logs("text", "WARNING,skylarkmq.part=DEBUG")
    part.debug("one")
    other.info("two")
    set_levels("info")
    part.debug("three")
    other.info("four")
    said = capsys.readouterr().err
    assert [word for word in ("one", "two", "three", "four") if word in said] == ["one", "four"]


def test_the_levels_of_an_application_are_its_own() -> None:
    root = logging.getLogger()
    before = root.level
    set_levels("DEBUG")  # of a broker inside a test
    assert root.level == before


@pytest.mark.parametrize(
    "wrong", ["", "LOUD", "skylarkmq=DEBUG", "INFO,=DEBUG", "INFO,a=", "INFO,"]
)
def test_what_is_no_level_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"level|logger"):
        parse_levels(wrong)


def test_a_line_for_people_has_its_zone() -> None:
    text = TextFormatter(TEXT_FORMAT).format(_record("hello"))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO +skylarkmq\S*: hello", text
    )


def test_lines_that_no_terminal_shows_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_format("text") == "text"
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert chosen_format("auto") == "json"
