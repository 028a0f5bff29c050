"""Subscriptions by tag: what an expression wants, and what it may cost."""

from __future__ import annotations

import pytest

from skylarkmq.broker.filter.tag_filter import (
    EXPRESSION_SIZE_MAX,
    TAGS_MAX,
    is_tag_type,
    parse_tags,
    tag_filter,
)
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.tags_code import tags_code


@pytest.mark.parametrize("expression", ["", " ", "*", " * "])
def test_what_wants_everything(expression: str) -> None:
    assert parse_tags(expression) is None


@pytest.mark.parametrize("expression", ["A||B", "A || B", "  A  ||  B  ", "||A||||B||", "A||B||A"])
def test_tags_are_split_and_trimmed(expression: str) -> None:
    matches = parse_tags(expression)
    assert matches is not None
    assert matches(tags_code("A"))
    assert matches(tags_code("B"))
    assert not matches(tags_code("C"))
    assert not matches(0), "a message without a tag"


def test_tags_beyond_ascii() -> None:
    matches = parse_tags("订单 || größe")
    assert matches is not None
    assert matches(tags_code("订单"))
    assert matches(tags_code("größe"))


def test_an_expression_has_a_length() -> None:
    assert parse_tags("A" * EXPRESSION_SIZE_MAX) is not None
    with pytest.raises(RemoteProtocolError, match="longer than 32767") as caught:
        parse_tags("A" * (EXPRESSION_SIZE_MAX + 1))
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_an_expression_has_so_many_tags() -> None:
    matches = parse_tags(" || ".join(f"tag{number}" for number in range(TAGS_MAX)))
    assert matches is not None
    assert matches(tags_code(f"tag{TAGS_MAX - 1}"))
    with pytest.raises(RemoteProtocolError, match="more than 1024 tags"):
        parse_tags("||" * TAGS_MAX)


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_separators_alone_are_refused(expression: str) -> None:
    with pytest.raises(RemoteProtocolError, match="no tag in") as caught:
        parse_tags(expression)
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("sub_string", ["", "*", " * "])
def test_a_subscription_to_everything_needs_no_codes(sub_string: str) -> None:
    assert tag_filter(sub_string, [1, 2]) is None


def test_a_heartbeats_codes_decide() -> None:
    matches = tag_filter("A || B", [tags_code("A"), tags_code("B")])
    assert matches is not None
    assert matches(tags_code("A"))
    assert not matches(tags_code("C"))


def test_a_client_that_sends_no_codes_filters_for_itself() -> None:
    assert tag_filter("A || B", []) is None


@pytest.mark.parametrize(
    ("expression_type", "is_tag"),
    [(None, True), ("", True), ("TAG", True), ("SQL92", False), ("tag", False)],
)
def test_types(expression_type: str | None, is_tag: bool) -> None:
    assert is_tag_type(expression_type) is is_tag
