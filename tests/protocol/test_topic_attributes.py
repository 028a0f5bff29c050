"""A topic's attributes: what clients of RocketMQ 5 may send."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.topic_attributes import (
    MESSAGE_TYPES,
    WrongAttributeError,
    changed_attributes,
    has_priorities,
    message_types_of,
)


def test_a_topic_takes_the_type_that_it_names() -> None:
    attributes = changed_attributes({}, "+message.type=FIFO")
    assert message_types_of(attributes) == ("FIFO",)
    attributes = changed_attributes(attributes, "+message.type=MIXED")
    assert message_types_of(attributes) == MESSAGE_TYPES


def test_a_topic_that_names_none_takes_all() -> None:
    attributes = changed_attributes({"message.type": "FIFO"}, "-message.type")
    assert message_types_of(attributes) == MESSAGE_TYPES
    assert message_types_of({"message.type": "of a later version"}) == MESSAGE_TYPES


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(WrongAttributeError, match=r"'queue\.type'.*message\.type"):
        changed_attributes({}, "+message.type=FIFO,+queue.type=BatchCQ")
    kept = {"queue.type": "BatchCQ"}  # a RocketMQ 5 broker wrote it
    assert changed_attributes(kept, "+queue.type=SimpleCQ") == {"queue.type": "SimpleCQ"}
    assert changed_attributes({}, "-queue.type") == {}


def test_a_type_that_is_none_is_refused() -> None:
    with pytest.raises(WrongAttributeError, match=r"message\.type='fifo'"):
        changed_attributes({}, "+message.type=fifo")


def test_priorities_are_for_topics_that_name_them_alone() -> None:
    attributes = changed_attributes({}, "+message.type=PRIORITY")
    assert message_types_of(attributes) == ("PRIORITY",)
    assert has_priorities(attributes)
    for other in ({}, {"message.type": "MIXED"}, {"message.type": "FIFO"}):
        assert "PRIORITY" not in message_types_of(other)
        assert not has_priorities(other)
