"""Java properties: separators, comments, continued lines, escapes, encodings."""

import pytest

from skylarkmq.broker.config.properties_file import (
    PropertiesError,
    Property,
    edit_properties,
    read_properties,
)


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(item.key, item.value) for item in read_properties(text.encode())]


@pytest.mark.parametrize(
    "line", ["a=b", "a = b", "a:b", "a : b", "a b", "a\tb", "\f a\t=\f b", "a=b  ", "  a=b\t"]
)
def test_every_separator(line: str) -> None:
    assert _pairs(line) == [("a", "b")]


def test_only_the_first_separator_counts() -> None:
    assert _pairs("a=b=c") == [("a", "b=c")]
    assert _pairs("a : = b") == [("a", "= b")]
    assert _pairs("a  b:c") == [("a", "b:c")]
    assert _pairs("namesrvAddr=h1:9876;h2:9876") == [("namesrvAddr", "h1:9876;h2:9876")]


def test_empty_values_and_lines() -> None:
    assert _pairs("a\n\n \t\nb=\nc:") == [("a", ""), ("b", ""), ("c", "")]


def test_comments_and_line_ends() -> None:
    assert _pairs("# a=1\n  ! b=2\r\nc=3\rd=4 # no comment") == [
        ("c", "3"),
        ("d", "4 # no comment"),
    ]


def test_continued_lines() -> None:
    assert _pairs("a=1\\\n   2\\\r\n\t3\nb=4") == [("a", "123"), ("b", "4")]
    assert _pairs("a=1\\\\\nb=2") == [("a", "1\\"), ("b", "2")]
    assert _pairs("a=1\\\\\\\n2") == [("a", "1\\2")]
    assert _pairs("# no\\\na=1") == [("a", "1")]
    assert _pairs("a=1,\\\n# 2") == [("a", "1,# 2")]
    assert _pairs("a=1\\") == [("a", "1")]


def test_a_pair_knows_its_line() -> None:
    text = b"# first\n\na=1\\\n2\nb=3\n"
    assert read_properties(text) == [Property("a", "12", 3), Property("b", "3", 5)]


def test_escapes() -> None:
    assert _pairs(r"a\ b\=\:=c\td\ne\\f\g") == [("a b=:", "c\td\ne\\fg")]
    assert _pairs("a=\\u0041\\u00e4\\uD83D\\uDE00") == [("a", "A\xe4\U0001f600")]


@pytest.mark.parametrize("value", [r"\u12", r"\uzzzz", r"\u"])
def test_a_malformed_character_names_its_line(value: str) -> None:
    with pytest.raises(PropertiesError, match="line 2"):
        read_properties(f"a=1\nb={value}".encode())


def test_encodings() -> None:
    assert read_properties("a=\xe4\u4e2d".encode())[0].value == "\xe4\u4e2d"
    assert read_properties("a=\xe4".encode("iso-8859-1"))[0].value == "\xe4"
    assert read_properties("a=1".encode("utf-8-sig"))[0].key == "a"


def test_keys_that_stand_twice_are_both_told() -> None:
    assert _pairs("a=1\na=2") == [("a", "1"), ("a", "2")]


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("", {"a": "1"}, "a=1\n"),
        ("a=1", {"a": "2"}, "a=2"),
        ("a=1\n", {"b": "2"}, "a=1\nb=2\n"),
        ("# c\n\n a : 1\n!d\n", {"a": "2"}, "# c\n\na=2\n!d\n"),
        ("a=1\nb=5\na=2\n", {"a": "3"}, "a=1\nb=5\na=3\n"),
        ("a=1,\\\n  2,\\\n  3\nb=4\n", {"a": "5"}, "a=5\nb=4\n"),
        ("a=1\\", {"b": "2"}, "a=1\\\n\nb=2\n"),
        ("\ufeffa=1\n", {"a": "2"}, "a=2\n"),
        ("# c\r\na=1\r\nb=2", {"a": "3"}, "# c\r\na=3\r\nb=2"),
        ("a=C:\n", {"a": "C:\\x"}, "a=C:\\\\x\n"),
        ("a=1\nb=2\n", {"b": "3", "c": "4", "a": "5"}, "a=5\nb=3\nc=4\n"),
    ],
)
def test_single_values_are_changed(before: str, changes: dict[str, str], after: str) -> None:
    edited = edit_properties(before.encode(), changes)
    assert edited == after.encode()
    found = {item.key: item.value for item in read_properties(edited)}
    assert {key: found[key] for key in changes} == changes


def test_latin_text_stays_latin() -> None:
    assert edit_properties(b"n\xe4me=v\na=1\n", {"a": "2"}) == b"n\xe4me=v\na=2\n"
