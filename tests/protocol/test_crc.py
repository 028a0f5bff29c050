"""Checksums against RocketMQ's vectors, and against the catalogue of CRCs."""

import zlib
from typing import Any

import crcmod.predefined
import pytest

from skylarkmq.common.crc import body_crc, crc32c, using_extension
from tests.protocol.message_vectors import STORE

CHECK = b"123456789"


@pytest.mark.parametrize("vector", STORE["bodyCrc"])
def test_rocketmqs_values(vector: dict[str, Any]) -> None:
    body = bytes.fromhex(vector["bodyHex"])
    assert body_crc(body) == vector["bodyCRC"]
    assert zlib.crc32(body) == vector["crc32Unsigned"]
    assert body_crc(memoryview(body)) == body_crc(bytearray(body)) == vector["bodyCRC"]


def test_the_catalogues_check_values() -> None:
    assert body_crc(CHECK) == 0xCBF43926 & 0x7FFFFFFF
    assert crc32c(CHECK) == 0xE3069283
    assert crc32c(memoryview(CHECK)) == crc32c(bytearray(CHECK)) == 0xE3069283


def test_zlib_computes_the_catalogues_crc_32() -> None:
    oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32")
    for size in (0, 1, 7, 128, 1000):
        data = bytes(index * 7 & 0xFF for index in range(size))
        assert body_crc(data) == oracle(data) & 0x7FFFFFFF


def test_an_empty_body_has_checksum_zero() -> None:
    assert body_crc(b"") == 0
    assert crc32c(b"") == 0


def test_the_log_can_say_whether_crc32c_is_compiled() -> None:
    assert isinstance(using_extension(), bool)
