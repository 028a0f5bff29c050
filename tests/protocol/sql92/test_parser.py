"""Which texts are expressions, what the refusals say, and what hostile texts cost."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.sql92.errors import TEXT_SIZE_MAX, ExpressionError
from skylarkmq.protocol.sql92.parser import DEPTH_MAX, END, parse, tokenize
from skylarkmq.protocol.sql92.tree import And, Cast, Or, Property


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the expression is empty"),
        ("  /* nothing */ ", "the expression is empty"),
        ("n = 1 + 1", "'+' stands at character 7 where the end, AND or OR is expected"),
        ("s LIKE 'a%'", "'LIKE' stands at character 3 where the end"),
        ("n = 09", "the number at character 5 begins with 0"),
        ("n != 1", "'!= 1' at character 3 cannot be read"),
        ("a.b = 1", "'.b = 1' at character 2 cannot be read"),
        ("n = 'abc", "the text at character 5 is not closed"),
        ("n = 1 /* x", "the comment at character 7 is not closed"),
        ("n = 1 -- no end of line", "'-' stands at character 7"),
        ("n =", "the expression ends at character 4 where a property, a value or '(' is expected"),
        ("(n = 1", "the expression ends at character 7 where ')' is expected"),
        ("n IS 5", "NULL or NOT NULL is expected"),
        ("n IN ('a' 'b')", "',' or ')' is expected"),
        ("n IN (9)", "a text in single quotes is expected"),
        ("5 IN ('a')", "5 stands before IN"),
        ("n > 'a'", "'a' cannot be ordered by >: only numbers can"),
        ("n > TRUE", "TRUE cannot be ordered"),
        ("n = NULL", "write IS NULL or IS NOT NULL"),
        ("n BETWEEN 9 AND 5", "BETWEEN wants 9, its first value, not above 5"),
        ("n BETWEEN NULL AND 5", "cannot be NULL"),
        ("TRUE = 1", "TRUE cannot be compared with 1"),
        ("'abc'", "'abc' is no condition"),
        ("n = 1 AND 5", "5 is no condition"),
        ("-n", "a negative value is no condition"),
        ("n = 9223372036854775808", "does not fit into 64 bits"),
        ("n = 0.0", "is zero or outside of what a double can hold"),
        ("größe = 1", "cannot be read"),
    ],
)
def test_a_refusal_says_what_and_where(text: str, why: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert why in str(caught.value)


def test_a_property_alone_is_cast() -> None:
    assert parse("(a)") == Cast(Property("a"))


def test_rows_are_one_node() -> None:
    row = parse(" OR ".join(["a", "b AND c AND d", "e"]))
    assert isinstance(row, Or) and isinstance(row.parts[1], And)
    assert (len(row.parts), len(row.parts[1].parts), row.depth) == (3, 3, 4)


def test_the_limit_of_length_counts_characters() -> None:
    text = "n = '" + "ß" * (TEXT_SIZE_MAX - 6) + "'"
    assert len(text) == TEXT_SIZE_MAX
    parse(text)
    with pytest.raises(ExpressionError, match="4097 characters, at most 4096"):
        parse(text + " ")


@pytest.mark.parametrize(
    "nest",
    [
        lambda count: "(" * count + "n = 1" + ")" * count,
        lambda count: "NOT " * count + "b",
        lambda count: "n = " + "-" * count + "1",
        lambda count: "n = " + "+" * count + "1",
        lambda count: "n" + " IS NULL" * count,
        lambda count: "n" + " IS NOT NULL" * count,
        lambda count: "b" + " = TRUE" * count,
        lambda count: "NOT (" * count + "b" + ")" * count,
        lambda count: "n = 1 AND (m = 2 OR (" * count + "b" + "))" * count,
    ],
)
def test_nesting_has_a_limit(nest) -> None:  # type: ignore[no-untyped-def]
    parse(nest(DEPTH_MAX // 5))
    with pytest.raises(ExpressionError, match="nested deeper than 50"):
        parse(nest(DEPTH_MAX + 2))
    with pytest.raises(ExpressionError):  # as deep as the text can hold
        parse(nest(TEXT_SIZE_MAX // len(nest(2)) - 1))


def test_long_rows_are_not_deep() -> None:
    text = " OR ".join(["a=1 AND b=2"] * 270)
    assert len(text) < TEXT_SIZE_MAX
    assert parse(text).depth == 4


@pytest.mark.parametrize(
    "text",
    [
        "9" * TEXT_SIZE_MAX,
        "9" * (TEXT_SIZE_MAX - 1) + "e",
        "0" * TEXT_SIZE_MAX,
        "'" * TEXT_SIZE_MAX,
        "'" * (TEXT_SIZE_MAX - 1),
        "-" * TEXT_SIZE_MAX,
        "/*" + "*" * (TEXT_SIZE_MAX - 2),
        "a" * TEXT_SIZE_MAX,
        "." * TEXT_SIZE_MAX,
        " " * TEXT_SIZE_MAX,
        "(" * TEXT_SIZE_MAX,
        "<>" * (TEXT_SIZE_MAX // 2),
        "1." * (TEXT_SIZE_MAX // 2),
        "\ud800" * 10,
        "\x00",
    ],
)
def test_hostile_texts_end_in_an_answer(text: str) -> None:
    if text.startswith("a"):
        assert parse(text) == Cast(Property(text))
        return
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_words() -> None:
    words = tokenize("Not$x >=.5E+1 <> 'it''s' 10L is--c\rNULL/**/0")
    assert [word.kind for word in words] == [
        "name", ">=", "float", "<>", "text", "integer", "IS", "NULL", "integer", END,
    ]  # fmt: skip
    assert [words[0].text, words[2].text, words[4].text] == ["Not$x", ".5E+1", "it's"]
    assert words[7].position == 35
