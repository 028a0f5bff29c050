"""Java's String.hashCode, and the two codes that the store makes of it.

    tags code       the hash of the TAGS property, sign-extended to the 64 bits of a queue unit; 0
    without tags index key hash  abs(hash of `topic#key`) in 32 bits; abs of the least integer
    stays negative: 0

The hash runs over UTF-16 code units: h = 31 * h + unit, modulo 2**32, read as signed. A character
above U+FFFF counts as two units.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageExtBrokerInner.java
(tagsString2tagsCode), store/.../index/IndexFile.java (indexKeyHashMethod)
"""

import struct
from functools import lru_cache
from operator import mul
from typing import Final

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_POWER_COUNT: Final = 256
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_POWER_COUNT - 1, -1, -1))
"""31**255 ... 31**0, modulo 2**32: the weights of a string's last 256 units."""


def java_string_hash(text: str) -> int:
    """Return Java's `text.hashCode()` as a signed 32-bit integer."""
    code = _fold(0, text)
    return code - (1 << 32) if code & _SIGN else code


def tags_code(tags: str) -> int:
    """Return the code of a TAGS value as a queue unit keeps it; 0 for an empty one."""
    return java_string_hash(tags)


@lru_cache(maxsize=4096)
def cached_tags_code(tags: bytes) -> int:
    """Return `tags_code` of UTF-8 text, remembered for the 4,096 values used last.

    Bytes that are no UTF-8 count as U+FFFD, as in Java.
    """
    return tags_code(tags.decode("utf-8", "replace"))


def index_key_hash(topic: str, key: str) -> int:
    """Return the hash under which the index files keep `key` of `topic`, never negative."""
    code = _fold(_topic_prefix_code(topic), key)
    return code if code < _SIGN else ((1 << 32) - code) & ~_SIGN


@lru_cache(maxsize=4096)
def _topic_prefix_code(topic: str) -> int:
    return _fold(0, topic + "#")


def _fold(code: int, text: str) -> int:
    """Return the unsigned hash of a text that hashes to `code` followed by `text`."""
    units: bytes | tuple[int, ...]
    if text.isascii():
        units = text.encode("ascii")
    else:
        encoded = text.encode("utf-16-be", "surrogatepass")
        units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    for start in range(0, len(units), _POWER_COUNT):
        chunk = units[start : start + _POWER_COUNT]
        weights = _POWERS[-len(chunk) :]
        weighted: int = sum(map(mul, chunk, weights))
        code = (code * weights[0] * 31 + weighted) & _MASK
    return code
