"""Limits of the store's configuration, and the relations between its sizes."""

from pathlib import Path

import pytest

from skylarkmq.common.config_fields import ConfigError, key_of, keys_of
from skylarkmq.store.config import StoreConfig

ROOT = Path("/store")


def test_keys_are_the_attributes_in_camel_case() -> None:
    assert key_of("flush_disk_type") == "flushDiskType"
    assert key_of("check_crc_on_recover") == "checkCRCOnRecover"
    assert key_of("broker_ip1") == "brokerIP1"
    keys = list(keys_of(StoreConfig))
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(("size", "rounded"), [(20, 20), (1, 20), (21, 40), (6_000_001, 6_000_020)])
def test_queue_file_size_is_rounded_up_to_whole_units(size: int, rounded: int) -> None:
    config = StoreConfig(store_path_root_dir=ROOT, mapped_file_size_consume_queue=size)
    assert config.mapped_file_size_consume_queue == rounded


def test_log_file_must_hold_the_largest_message() -> None:
    limit = 4096 + 65536 + 8
    StoreConfig(store_path_root_dir=ROOT, max_message_size=4096, mapped_file_size_commit_log=limit)
    with pytest.raises(ConfigError, match=f"mappedFileSizeCommitLog={limit - 1}: .*{limit}"):
        StoreConfig(
            store_path_root_dir=ROOT, max_message_size=4096, mapped_file_size_commit_log=limit - 1
        )


@pytest.mark.parametrize(
    ("attribute", "value", "key"),
    [
        ("flush_interval_commit_log", 0, "flushIntervalCommitLog"),
        ("flush_interval_commit_log", 2**31, "flushIntervalCommitLog"),
        ("max_index_num", 1, "maxIndexNum"),  # item 0 is never used
        ("max_index_num", 2**31 // 20, "maxIndexNum"),  # a file over 2 GiB
        ("disk_max_used_space_ratio", 101, "diskMaxUsedSpaceRatio"),
        ("ha_listen_port", 65536, "haListenPort"),
        ("flush_disk_type", "SYNC", "flushDiskType"),
        ("message_delay_level", "1s 5x", "messageDelayLevel"),
        ("message_delay_level", "", "messageDelayLevel"),
    ],
)
def test_a_value_outside_of_its_limits_names_its_key(
    attribute: str, value: object, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreConfig(store_path_root_dir=ROOT, **{attribute: value})  # type: ignore[arg-type]
    assert caught.value.key == key
    assert caught.value.value == str(value)
    assert caught.value.cure
