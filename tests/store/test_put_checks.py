"""What is too large to be stored, to the byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.store.config import RECORD_OVERHEAD
from skylarkmq.store.message_writer import check_message
from skylarkmq.store.results import PutMessageStatus
from tests.store.support import MESSAGE_MAX, inner, store_config

CONFIG = store_config(Path("/nowhere"))
ILLEGAL, PROPERTIES = PutMessageStatus.MESSAGE_ILLEGAL, PutMessageStatus.PROPERTIES_SIZE_EXCEEDED


def test_the_largest_message_is_taken() -> None:
    message = inner("t" * 127, body=bytes(MESSAGE_MAX), properties=b"p" * 32_767)
    assert check_message(message, CONFIG) is None


@pytest.mark.parametrize(
    ("topic", "body", "properties", "status", "figures"),
    [
        ("t" * 128, 1, 1, ILLEGAL, ("128", "127")),
        ("t", MESSAGE_MAX + 1, 1, ILLEGAL, (str(MESSAGE_MAX + 1), str(MESSAGE_MAX))),
        ("t", 1, 32_768, PROPERTIES, ("32768", "32767")),
    ],
)
def test_one_byte_more_is_refused_with_both_figures(
    topic: str, body: int, properties: int, status: PutMessageStatus, figures: tuple[str, str]
) -> None:
    refused = check_message(inner(topic, body=bytes(body), properties=b"p" * properties), CONFIG)
    assert refused is not None
    assert (refused.status, refused.queue_offset, refused.physical_offset) == (status, -1, -1)
    assert all(figure in refused.why for figure in figures)


def test_a_copy_may_be_larger_as_long_as_a_log_file_holds_it() -> None:
    limit = CONFIG.mapped_file_size_commit_log - RECORD_OVERHEAD
    assert limit > MESSAGE_MAX
    assert check_message(inner(body=bytes(limit), is_copy=True), CONFIG) is None
    assert check_message(inner(body=bytes(limit)), CONFIG) is not None
    assert check_message(inner(body=bytes(limit + 1), is_copy=True), CONFIG) is not None
