"""Questions to several brokers: who does not answer is noted, or ends the question."""

from __future__ import annotations

import pytest

from skylarkmq.client.admin.base import ask_brokers
from skylarkmq.client.admin.results import Unanswered
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    NotSupported,
    RequestTimeout,
    RocketMQError,
    TopicNotExist,
)

BROKERS = {"a": "a:1", "b": "b:1", "c": "c:1"}
SILENT = RequestTimeout("no answer")
REFUSED = BrokerError(16, "no", "c:1")


class Asked:
    """Brokers that answer with their address, or with an error."""

    def __init__(self, **errors: RocketMQError) -> None:
        self.errors = errors
        self.names: list[str] = []

    async def __call__(self, name: str, address: str) -> str:
        self.names.append(name)
        if name in self.errors:
            raise self.errors[name]
        return address


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SILENT, "silent"),
        (ConnectionFailed("b:1", "nobody is there"), "away"),
        (REFUSED, "refused"),
    ],
)
async def test_who_does_not_answer_is_noted_and_why(error: RocketMQError, why: str) -> None:
    noted: dict[str, Unanswered] = {}
    assert await ask_brokers(Asked(b=error), BROKERS, noted) == {"a": "a:1", "c": "c:1"}
    assert [each.to_json() for each in noted.values()] == [
        {"broker": "b", "address": "b:1", "why": why, "error": str(error)}
    ]


async def test_a_silent_broker_is_waited_for_once_and_one_that_refuses_is_asked_again() -> None:
    """With fifty groups a look would take minutes otherwise; a refusal may be of one question."""
    noted: dict[str, Unanswered] = {}
    await ask_brokers(Asked(b=SILENT, c=REFUSED), BROKERS, noted)
    again = Asked()
    assert await ask_brokers(again, BROKERS, noted) == {"a": "a:1", "c": "c:1"}
    assert again.names == ["a", "c"]


async def test_an_error_is_raised_where_nobody_answers() -> None:
    noted: dict[str, Unanswered] = {}
    with pytest.raises(RequestTimeout):
        await ask_brokers(Asked(a=SILENT, b=REFUSED, c=REFUSED), BROKERS, noted)
    assert noted.keys() == BROKERS.keys()
    with pytest.raises(RequestTimeout):
        await ask_brokers(Asked(), {"a": "a:1"}, noted)


@pytest.mark.parametrize("error", [TopicNotExist(17, "none", "b:1"), NotSupported("too old")])
async def test_an_answer_that_there_is_none_ends_the_question(error: RocketMQError) -> None:
    noted: dict[str, Unanswered] = {}
    with pytest.raises(type(error)):
        await ask_brokers(Asked(b=error), BROKERS, noted)
    assert not noted


async def test_without_a_place_to_note_them_the_first_error_ends_it() -> None:
    with pytest.raises(RequestTimeout):
        await ask_brokers(Asked(b=SILENT), BROKERS)


async def test_of_no_brokers_nothing_is_asked() -> None:
    assert await ask_brokers(Asked(), {}, {}) == {}
