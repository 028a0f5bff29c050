"""Log lines: text for people, one JSON object a line for machines."""

import json
import logging
import sys

import pytest

from skylarkmq.broker.logs import FIELDS, LINES_MAX, JsonFormatter, RateLimit, set_up_logs


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


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_logs_go_to_stderr(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        set_up_logs("json" if log_format == "json" else "text", "WARNING")
        logging.getLogger("skylarkmq.x").info("quiet")
        logging.getLogger("skylarkmq.x").warning("loud")
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loud" in captured.err and "quiet" not in captured.err
    assert captured.err.startswith("{") is (log_format == "json")


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
