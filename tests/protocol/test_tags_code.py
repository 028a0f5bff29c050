"""Java's string hash against Java's values and against its definition."""

from typing import Any

import pytest

from skylarkmq.protocol.tags_code import (
    cached_tags_code,
    index_key_hash,
    java_string_hash,
    tags_code,
)
from tests.protocol.message_vectors import RECORDS, STORE


def by_definition(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for position in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[position : position + 2], "big")) % (1 << 32)
    return code - (1 << 32) if code >= 1 << 31 else code


@pytest.mark.parametrize("vector", STORE["javaStringHash"])
def test_javas_values(vector: dict[str, Any]) -> None:
    text = vector["text"]
    assert java_string_hash(text) == vector["javaHashCode"] == by_definition(text)
    if "#" in text:
        topic, _, key = text.partition("#")
        assert index_key_hash(topic, key) == vector["indexKeyHash"]
        assert index_key_hash(topic, key) % 5_000_000 == vector["slotOf5000000"]


@pytest.mark.parametrize("item", STORE["index"]["items"])
def test_the_keys_of_an_index_file(item: dict[str, Any]) -> None:
    topic, _, key = item["key"].partition("#")
    assert java_string_hash(item["key"]) == item["javaHashCode"]
    assert index_key_hash(topic, key) == item["keyHash"]
    assert item["keyHash"] % STORE["index"]["hashSlotNum"] == item["slot"]


def test_the_keys_of_a_rolled_index_file() -> None:
    hashes = {item["keyHash"] for item in STORE["rolledIndexFile"]["items"]}
    assert hashes <= {index_key_hash("T", key) for key in "abcdefgh"}


@pytest.mark.parametrize("vector", [record for record in RECORDS if "tagsCode" in record])
def test_the_tags_of_rocketmqs_records(vector: dict[str, Any]) -> None:
    tags = dict(vector["properties"]).get("TAGS", "")
    if vector["topic"] != "SCHEDULE_TOPIC_XXXX":
        assert tags_code(tags) == cached_tags_code(tags.encode()) == vector["tagsCode"]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 31, 255, 256, 257, 511, 512, 513, 5000])
def test_every_length(size: int) -> None:
    for text in ("z" * size, "\u8ba2" * size, "\U0001f600" * size, "~\x00" * size):
        assert java_string_hash(text) == by_definition(text)


def test_lone_surrogates_count_as_their_unit() -> None:
    assert java_string_hash("\ud800") == 0xD800


def test_the_least_integer_becomes_index_hash_zero() -> None:
    assert java_string_hash("TopicTest#aentnpwi") == -(1 << 31)
    assert index_key_hash("TopicTest", "aentnpwi") == 0


def test_bytes_that_are_no_utf8_hash_like_javas_replacement() -> None:
    assert cached_tags_code(b"a\xff") == tags_code("a\ufffd")


def test_the_cache_is_bounded() -> None:
    cached_tags_code.cache_clear()
    for number in range(5000):
        cached_tags_code(b"tag%d" % number)
    assert cached_tags_code.cache_info().currsize <= 4096
