"""Java's String.hashCode, and the two codes that the store makes of it.

    tags code       the hash of the TAGS property, sign-extended to the 64 bits of a queue unit; 0
    without tags index key hash  abs(hash of `topic#key`) in 32 bits; abs of the least integer
    stays negative: 0

The hash runs over UTF-16 code units: h = 31 * h + unit, modulo 2**32, read as signed. A character
above U+FFFF counts as two units.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageExtBrokerInner.java
(tagsString2tagsCode), store/.../index/IndexFile.java (indexKeyHashMethod)
"""

from functools import lru_cache
from typing import Final

_BASE: Final = 31
_MODULUS: Final = 1 << 32
_MASK: Final = _MODULUS - 1
_SIGN: Final = 0x80000000

# A hash is a number written in base 31 whose digits are the units. Python reads such numbers in C,
# but its digits end at 30, so each byte is split, byte = 31 * quotient + remainder, and two numbers
# are read: a key of 42 characters costs a fourth of what a loop over its characters would.
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_QUOTIENTS: Final = bytes(_DIGITS[byte // _BASE] for byte in range(256))
_REMAINDERS: Final = bytes(_DIGITS[byte % _BASE] for byte in range(256))
_CHUNK_SIZE: Final = 256
"""Bytes read as one number: the time that takes grows with the square of them."""
_POWERS: Final = tuple(pow(_BASE, exponent, _MODULUS) for exponent in range(_CHUNK_SIZE + 1))
assert len(_DIGITS) == _BASE

# The unique keys that clients make have digits and capitals only. Of the 31 characters from `0` to
# `N` each is a digit of base 31 and 48 more, so one number is read of such a key.
_CAPITAL: Final = ord("0")
_CAPITALS: Final = bytes(
    _DIGITS[byte - _CAPITAL] if 0 <= byte - _CAPITAL < _BASE else ord("~") for byte in range(256)
)
_CAPITAL_SIZE_MAX: Final = 64
_CAPITAL_CODES: Final = tuple(
    sum(_CAPITAL * _POWERS[place] for place in range(size)) for size in range(_CAPITAL_SIZE_MAX + 1)
)


def java_string_hash(text: str) -> int:
    """Return Java's `text.hashCode()` as a signed 32-bit integer."""
    code = _fold(0, text)
    return code - _MODULUS if code & _SIGN else code


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
    code = _fold(topic_prefix_code(topic), key)
    return code if code < _SIGN else (_MODULUS - code) & ~_SIGN


@lru_cache(maxsize=4096)
def topic_prefix_code(topic: str) -> int:
    """Return the unsigned hash of `topic#`, with which each of its keys in the index begins."""
    return _fold(0, topic + "#")


def index_hash(prefix_code: int, key: bytes) -> int:
    """Return `index_key_hash` of a key in UTF-8, given the `topic_prefix_code`.

    For keys in bulk. Bytes that are no UTF-8 count as U+FFFD, as in Java.
    """
    size = len(key)
    try:
        if size > _CAPITAL_SIZE_MAX:
            raise ValueError  # the other way is as good
        code = (
            prefix_code * _POWERS[size]
            + int(key.translate(_CAPITALS), _BASE)
            + _CAPITAL_CODES[size]
        ) & _MASK
    except ValueError:
        if key.isascii():
            code = _fold_bytes(prefix_code, key)
        else:
            code = _fold(prefix_code, key.decode("utf-8", "replace"))
    return code if code < _SIGN else (_MODULUS - code) & ~_SIGN


def index_hash_of_text(prefix_code: int, key: bytes) -> int:
    """Return the same as `index_hash`, sooner for keys with other characters than `0` to `N`."""
    if not key.isascii():
        code = _fold(prefix_code, key.decode("utf-8", "replace"))
    elif len(key) <= _CHUNK_SIZE and key:
        quotients = int(key.translate(_QUOTIENTS), _BASE)
        remainders = int(key.translate(_REMAINDERS), _BASE)
        code = (prefix_code * _POWERS[len(key)] + quotients * _BASE + remainders) & _MASK
    else:
        code = _fold_bytes(prefix_code, key)
    return code if code < _SIGN else (_MODULUS - code) & ~_SIGN


def _fold(code: int, text: str) -> int:
    """Return the unsigned hash of a text that hashes to `code` followed by `text`."""
    if text.isascii():
        return _fold_bytes(code, text.encode("ascii"))
    units = text.encode("utf-16-be", "surrogatepass")
    return (_fold_bytes(code, units[1::2]) + (_fold_bytes(0, units[::2]) << 8)) & _MASK


def _fold_bytes(code: int, data: bytes) -> int:
    for start in range(0, len(data), _CHUNK_SIZE):
        chunk = data[start : start + _CHUNK_SIZE]
        quotients = int(chunk.translate(_QUOTIENTS), _BASE)
        remainders = int(chunk.translate(_REMAINDERS), _BASE)
        code = (code * _POWERS[len(chunk)] + quotients * _BASE + remainders) & _MASK
    return code
