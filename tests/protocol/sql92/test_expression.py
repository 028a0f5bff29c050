"""What a compiled filter says of a message, held against RocketMQ's own results.

`golden-sql92.json` holds the results of RocketMQ's parser and evaluator for expressions that were
written by hand and at random.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.sql92.errors import ExpressionError
from skylarkmq.protocol.sql92.expression import CACHED_MAX, Expression, compile_expression
from skylarkmq.protocol.sql92.java_values import EvaluationError

GOLDEN = Path(__file__).parents[2] / "golden" / "golden-sql92.json"
LATER = "s CONTAINS 'b'"  # 4.9 takes it for `s`; RocketMQ 5 knows the word
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text("utf-8"))["cases"]
WORDS = {True: "true", False: "false", None: "null"}


def outcome(expression: str, properties: dict[str, str]) -> str:
    """`refused`, `error`, or what the expression says."""
    try:
        compiled = compile_expression(expression)
    except ExpressionError:
        return "refused"
    data = encode_properties(properties).encode()
    try:
        said = WORDS[compiled.evaluate(data)]
    except EvaluationError:
        said = "error"
    assert compiled.matches(data) is (said == "true")
    return said


def test_every_result_is_rocketmqs() -> None:
    wrong = [
        (case, found)
        for case in CASES
        if case["expression"] != LATER
        and (found := outcome(case["expression"], case["properties"])) != case["result"]
    ]
    assert not wrong
    assert {case["result"] for case in CASES} == {"refused", "error", "true", "false", "null"}


@pytest.mark.parametrize("name", ["TAGS", "KEYS", "UNIQ_KEY", "DELAY"])
def test_system_properties_are_properties(name: str) -> None:
    assert outcome(f"{name} = 'x'", {name: "x"}) == "true"


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("n BETWEEN 9 AND 10", {8: "false", 9: "true", 10: "true", 11: "false"}),
        ("n NOT BETWEEN 9 AND 10", {8: "true", 9: "false", 10: "false", 11: "true"}),
        ("n > 9", {8: "false", 9: "false", 10: "true"}),
        ("n >= 9", {8: "false", 9: "true", 10: "true"}),
        ("9 > n", {8: "true", 9: "false", 10: "false"}),
        ("9 >= n", {8: "true", 9: "true", 10: "false"}),
        ("9 < n", {8: "false", 9: "false", 10: "true"}),
        ("9 <= n", {8: "false", 9: "true", 10: "true"}),
    ],
)
def test_borders(expression: str, said: dict[int, str]) -> None:
    assert {n: outcome(expression, {"n": str(n)}) for n in said} == said
    doubles = expression.replace("9", "9.0").replace("10", "10.0")
    assert {n: outcome(doubles, {"n": str(n)}) for n in said} == said


@pytest.mark.parametrize(
    ("expression", "matching"),
    [
        ("s CONTAINS 'b'", {"abc", "b"}),
        ("s NOT CONTAINS 'b'", {"ca"}),
        ("s startswith 'ab'", {"abc"}),
        ("s NOT StartsWith 'ab'", {"b", "ca"}),
        ("s ENDSWITH 'c'", {"abc"}),
        ("s NOT ENDSWITH 'c'", {"b", "ca"}),
        ("s CONTAINS ''", set()),
        ("s NOT CONTAINS ''", set()),
        ("s CONTAINS '''' OR s STARTSWITH 'b'", {"b"}),
    ],
)
def test_the_words_of_rocketmq_5(expression: str, matching: set[str]) -> None:
    said = {text: outcome(expression, {"s": text}) for text in ("abc", "b", "ca")}
    assert {text for text in said if said[text] == "true"} == matching
    assert set(said.values()) <= {"true", "false"}
    assert outcome(expression, {}) == "false", "what is not there matches neither way"


def test_what_is_no_text_holds_nothing_and_names_stay_names() -> None:
    assert outcome("n > 1 CONTAINS 'x'", {"n": "2"}) == "false"
    assert outcome("1 CONTAINS '1' OR 5 NOT ENDSWITH '4'", {}) == "false"
    assert outcome("'abc' CONTAINS 'b'", {}) == "true"
    assert outcome("NOT (s CONTAINS 'b')", {}) == "true"
    assert outcome("s CONTAINS 'ü'", {"s": "für"}) == "true"
    properties = {"contains": "a", "startsWith": "b"}
    assert outcome("contains = 'a' AND startsWith CONTAINS 'b'", properties) == "true"
    for wrong in ("s CONTAINS", "s CONTAINS 1", "s CONTAINS t", "s NOT 'a'", "s LIKE 'a'"):
        assert outcome(wrong, {"s": "a"}) == "refused"


def test_signs_are_no_comment_without_an_end_of_line() -> None:
    assert outcome("n = --9", {"n": "9"}) == "true"
    assert outcome("n = --8\n9", {"n": "9"}) == "true"
    assert outcome("n = --8\r--7\n--9", {"n": "9"}) == "true"


def test_names_are_told_apart_by_case_and_end() -> None:
    properties = {"ab": "1", "xa": "1", "A": "1"}
    assert outcome("a IS NULL", properties) == "true"
    assert outcome("a = 1", {**properties, "a": "1"}) == "true"


def test_of_two_pairs_with_one_name_the_later_counts() -> None:
    assert compile_expression("a = 2").matches(b"a\x011\x02b\x013\x02a\x012\x02")


def test_what_is_no_property_text_is_passed_over() -> None:
    assert compile_expression("a IS NULL").matches(b"\x02\x01\x02a\x02a\x01")
    assert compile_expression("a IS NULL").matches(b"")


@pytest.mark.parametrize("value", [b"\xff\xfe", "9\u0660".encode(), b"9\xff", b"-", b"+", b"1_0"])
def test_values_that_are_no_number_do_not_match(value: bytes) -> None:
    matches = compile_expression("a = 9 OR a <> 9").matches
    assert matches(b"a\x01" + value) is (value == "9\u0660".encode())  # Java reads that digit


def test_long_values_cost_no_more_than_their_length() -> None:
    digits = b"a\x01" + b"1" * 32_000
    for text in ("a = 1", "a = 3000000000", "a > 1.5", "a > b"):
        compile_expression(text).matches(digits + b"x\x02b\x01" + b"1" * 700)
    assert compile_expression("a > 1.5").matches(digits)
    assert not compile_expression("a = 1").matches(digits)


def test_a_text_is_compiled_once_while_it_is_in_the_cache() -> None:
    first = compile_expression("cached = 1")
    assert compile_expression("cached = 1") is first
    for number in range(CACHED_MAX):
        compile_expression(f"other = {number}")
    assert compile_expression("cached = 1") is not first


def test_a_refusal_is_told_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ExpressionError, match="expected"):
            compile_expression("a = ")


def test_the_cost_is_what_one_evaluation_looks_at() -> None:
    def cost(text: str) -> int:
        compiled: Expression = compile_expression(text)
        return compiled.cost

    assert cost("a = 1") == 2
    assert cost("a BETWEEN 1 AND 2 AND b NOT IN ('x')") == 5
    assert cost("c") == 1
