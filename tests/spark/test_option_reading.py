"""Reading options: case, units, bounds, contradictions, and texts that help."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.option_reading import (
    OptionError,
    OptionReader,
    is_secret,
    nearest,
    shown,
)

KNOWN = ("topic", "nameServer", "startingOffsets", "secretKey", "size", "wait", "count", "flag")


def reader(**given_options: str) -> OptionReader:
    return OptionReader(given_options, KNOWN)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(OptionError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("key", ["startingOffsets", "startingoffsets", "STARTINGOFFSETS"])
def test_case_does_not_matter(key: str) -> None:
    options = OptionReader({key: " earliest "}, KNOWN)
    assert options.text("startingOffsets") == "earliest"
    assert options.given("STARTINGoffsets")


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("topik", "did you mean topic?"),
        ("nameserver2", "did you mean nameServer?"),
        ("startingoffset", "did you mean startingOffsets?"),
        ("zzzzzz", "known are"),
    ],
)
def test_unknown_options_name_the_nearest(key: str, wanted: str) -> None:
    text = refusal(lambda: OptionReader({key: "x"}, KNOWN))
    assert f"unknown option {key}" in text and wanted in text


def test_a_hint_goes_before_the_nearest() -> None:
    text = refusal(lambda: OptionReader({"Path": "x"}, KNOWN, hints={"path": "no path here"}))
    assert text == "unknown option Path: no path here"


def test_options_of_others() -> None:
    assert (
        OptionReader({"what": "x", "topic": "T"}, KNOWN, others_allowed=True).text("topic") == "T"
    )
    assert OptionReader({"checkpointLocation": "/x", "queryName": "q"}, KNOWN).text("topic") == ""


def test_empty_is_absent() -> None:
    options = reader(topic=" ", count="")
    assert not options.given("topic")
    assert options.integer("count", 7) == 7
    assert "option topic is missing: name one" in refusal(
        lambda: options.required("topic", "name one")
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), ("250ms", 250), ("2s", 2000), ("15m", 900_000), ("15 min", 900_000),
     ("2H", 7_200_000), ("1d", 86_400_000)],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert reader(wait=text).milliseconds("wait", 1) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("4k", 4096), ("256KiB", 262144), ("4 MiB", 4 * 1024**2), ("1gb", 1024**3)],
)
def test_sizes(text: str, size: int) -> None:
    assert reader(size=text).size("size", 1) == size


@pytest.mark.parametrize("text", ["-1", "x", "1.5", "5 parsecs", "1s1m", "\u0661"])
def test_wrong_amounts(text: str) -> None:
    assert "wait" in refusal(lambda: reader(wait=text).milliseconds("wait", 1))
    assert "size" in refusal(lambda: reader(size=text).size("size", 1))


def test_bounds() -> None:
    assert reader(count="5").integer("count", 1, low=5, high=5) == 5
    assert "at least 6" in refusal(lambda: reader(count="5").integer("count", 1, low=6))
    assert "at most 4" in refusal(lambda: reader(count="5").integer("count", 1, high=4))
    assert "a whole number, not 'five'" in refusal(lambda: reader(count="five").integer("count", 1))
    assert "at most 1000 ms" in refusal(
        lambda: reader(wait="2s").milliseconds("wait", 1, high=1000)
    )
    assert reader().integer("count", None) is None


def test_flags_and_choices() -> None:
    assert [reader(flag=text).flag("flag", False) for text in ("true", "YES", "1")] == [True] * 3
    assert [reader(flag=text).flag("flag", True) for text in ("False", "off")] == [False] * 2
    assert "true or false, not 'maybe'" in refusal(lambda: reader(flag="maybe").flag("flag", True))
    assert reader(flag="sql92").choice("flag", ("TAG", "SQL92"), "TAG") == "SQL92"
    assert "one of TAG, SQL92" in refusal(lambda: reader(flag="x").choice("flag", ("TAG", "SQL92"),
                                                                         "TAG"))  # fmt: skip


def test_lists() -> None:
    assert reader(topic=" a, b,,a ,").listing("topic") == ("a", "b")
    assert reader(topic="a;b,c").listing("topic", ";,") == ("a", "b", "c")


@pytest.mark.parametrize("text", ["{", "[]", "1", '{"a":1,"a":2}', "[" * 50_000])
def test_json_that_is_no_object(text: str) -> None:
    assert 'such as {"T":1}' in refusal(lambda: reader(topic=text).json_object("topic", '{"T":1}'))


def test_contradictions() -> None:
    both = reader(topic="a", count="1")
    assert "topic and count exclude each other" in refusal(
        lambda: both.exactly_one("topic", "count")
    )
    assert "topic, count or size is needed" in refusal(
        lambda: reader().exactly_one("topic", "count", "size")
    )
    assert reader().at_most_one("topic", "count") is None
    assert both.exactly_one("topic", "size") == "topic"
    assert refusal(lambda: both.refuse(("count",), "is for streams")) == (
        "option count is for streams"
    )


def test_secrets_are_never_shown() -> None:
    for name in ("secretKey", "accessKey", "securityToken", "tls.keyPassword", "SECRETKEY"):
        assert is_secret(name)
        assert shown(name, "hush") == "(hidden)"
    options = reader(secretKey="hush")
    assert "hush" not in repr(options)
    assert "hush" not in refusal(lambda: options.integer("secretKey", 1))
    assert not is_secret("topic") and shown("topic", "x") == "'x'"


@given(st.text(max_size=20), st.text(max_size=20))
def test_anything_is_read_or_refused(key: str, value: str) -> None:
    try:
        options = OptionReader({key: value}, KNOWN)
    except OptionError:
        return
    for call in (options.integer, options.milliseconds, options.size):
        try:
            assert call(key, 1) >= 0
        except OptionError as error:
            assert key.strip() in str(error)
    assert nearest(key, KNOWN) is not None
