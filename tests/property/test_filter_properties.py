"""SQL92 filters under random input: a second, naive evaluator agrees; hostile texts end in answers.

The naive one walks lists of words and knows nothing of the parser, the tree or the closures.
Hypothesis prints the failing example and how to reproduce it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.record import record_properties
from skylarkmq.protocol.sql92.errors import ExpressionError
from skylarkmq.protocol.sql92.expression import Expression, compile_expression
from skylarkmq.protocol.sql92.java_values import EvaluationError
from tests.support.amounts import examples

CALM = examples(40, 100)

NAMES = ("n", "s", "b", "missing", "TAGS", "_x$1")
Naive = list[Any]  # a word and what belongs to it

numbers = st.one_of(
    st.integers(0, 12),
    st.integers(-12, -1),
    st.sampled_from([2.5, 0.1, 1e10, 2**31, 2**63 - 1]),
)
texts = st.sampled_from(["", "abc", "it's", "9", "x y", "größe"])
names = st.sampled_from(NAMES)
leaves: st.SearchStrategy[Naive] = st.one_of(
    st.tuples(st.sampled_from(["=", "<>", ">", ">=", "<", "<="]), names, numbers).map(list),
    st.tuples(st.sampled_from(["=", "<>"]), names, texts).map(list),
    st.tuples(st.sampled_from(["=", "<>"]), names, st.booleans()).map(list),
    st.tuples(st.sampled_from(["in", "not in"]), names, st.lists(texts, min_size=1)).map(list),
    st.tuples(st.sampled_from(["null", "not null"]), names).map(list),
    st.tuples(st.sampled_from(["between", "not between"]), names, st.tuples(numbers, numbers)).map(
        lambda leaf: [leaf[0], leaf[1], sorted(leaf[2])]
    ),
    st.sampled_from([["constant", True], ["constant", False], ["constant", None]]),
)
trees: st.SearchStrategy[Naive] = st.recursive(
    leaves,
    lambda below: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), below, below).map(list),
        below.map(lambda inner: ["not", inner]),
    ),
    max_leaves=8,
)
values = st.sampled_from(["9", "-3", "+7", "2.5", "abc", "it's", "true", "FALSE", "x y", "1e3"])
messages = st.dictionaries(names, values)


def literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {True: "TRUE", False: "false", None: "Null"}[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


def written(tree: Naive) -> str:
    """The tree as an expression, with more parentheses than it needs."""
    word, *rest = tree
    if word in ("and", "or"):
        return f"({written(rest[0])} {word} {written(rest[1])})"
    if word == "not":
        return f"NOT ({written(rest[0])})"
    if word in ("in", "not in"):
        return f"{rest[0]} {word} ({', '.join(map(literal, rest[1]))})"
    if word in ("null", "not null"):
        return f"{rest[0]} is {word}"
    if word in ("between", "not between"):
        return f"{rest[0]} {word} {rest[1][0]!r} AND {rest[1][1]!r}"
    if word == "constant":
        return literal(rest[0])
    return f"{rest[0]} {word} {literal(rest[1])}"


class Fails(Exception):
    """A value can not be read as the expression asks."""


def said(tree: Naive, message: dict[str, str]) -> bool | None:
    """What the tree says of a message."""
    word, *rest = tree
    if word == "constant":
        result: bool | None = rest[0]
        return result
    if word == "not":
        inner = said(rest[0], message)
        return None if inner is None else inner is False
    if word in ("and", "or"):
        decides: bool = word == "or"
        first = said(rest[0], message)
        if first is decides:
            return decides
        second = said(rest[1], message)
        if second is decides:
            return decides
        return None if None in (first, second) else not decides
    value = message.get(rest[0])
    if word in ("null", "not null"):
        return (value is None) is (word == "null")
    if word in ("between", "not between"):
        low, high = rest[1]
        inside = word == "between"
        signs = (">=", "<=", "and") if inside else ("<", ">", "or")
        return said([signs[2], [signs[0], rest[0], low], [signs[1], rest[0], high]], message)
    if value is None:
        return None
    if word in ("in", "not in"):
        return (value in rest[1]) is (word == "in")
    return compared(word, value, rest[1])


def compared(sign: str, value: str, wanted: Any) -> bool:
    if isinstance(wanted, bool):
        equal = (value.lower() == "true") == wanted
        return equal == (sign == "=")
    if isinstance(wanted, str):
        return (value == wanted) == (sign == "=")
    found: float
    try:
        found = float(value) if isinstance(wanted, float) else int(value)
    except ValueError as error:
        raise Fails from error
    answers: dict[str, bool] = {
        "=": found == wanted,
        "<>": found != wanted,
        ">": found > wanted,
        ">=": found >= wanted,
        "<": found < wanted,
        "<=": found <= wanted,
    }
    return answers[sign]


@CALM
@given(trees, messages)
def test_a_naive_evaluator_agrees(tree: Naive, message: dict[str, str]) -> None:
    compiled = compile_expression(written(tree))
    data = encode_properties(message).encode()
    expected: bool | str | None
    found: bool | str | None
    try:
        expected = said(tree, message)
    except Fails:
        expected = "fails"
    try:
        found = compiled.evaluate(data)
    except EvaluationError:
        found = "fails"
    assert found == expected
    assert compiled.matches(data) is (expected is True)


words = st.sampled_from(
    [
        "n",
        "s",
        "NOT",
        "AND",
        "OR",
        "IN",
        "IS",
        "NULL",
        "BETWEEN",
        "TRUE",
        "(",
        ")",
        ",",
        "=",
        "CONTAINS",
    ]
).flatmap(
    lambda word: st.sampled_from(
        [word, "<>", "<", ">=", "-", "+", "1", "2.5", "'a'", "''", "--", "/*", "*/", "0", "9L"]
    )
)
programs = st.one_of(st.text(max_size=60), st.lists(words, max_size=30).map(" ".join))


@CALM
@given(programs, st.binary(max_size=60))
@example("(" * 3000, b"")
@example("NOT " * 1000 + "b", b"b\x01true")
@example("a IS NULL" + " = TRUE" * 500, b"")
@example("n = " + "-" * 4000 + "1", b"n\x011")
@example(" AND ".join(["n > -0.5"] * 300), b"n\x01NaN")
@example(" OR ".join(["a = b"] * 500), b"a\x01\xff\x02b\x01\xfe")
def test_any_text_is_refused_or_runs(text: str, properties: bytes) -> None:
    try:
        compiled: Expression = compile_expression(text)
    except ExpressionError as error:
        assert 0 < len(str(error)) < 300
        return
    assert compiled.matches(properties) in (True, False)
    assert 1 <= compiled.cost <= len(text)


@CALM
@given(st.binary(max_size=300), st.integers(-5, 300), st.integers(-5, 300))
def test_properties_of_any_bytes(data: bytes, position: int, size: int) -> None:
    found = record_properties(data, position, size)
    assert found is None or found in data
