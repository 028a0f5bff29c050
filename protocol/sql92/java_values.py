"""Java's reading and ordering of values, which decide what a filter takes for a number.

A property's value is bytes of UTF-8, as in the record; a filter compares it with a constant of a
Java type. What is no such value is an evaluation error, and the message is not matched.

Source: apache/rocketmq@rocketmq-all-4.9.8 filter/.../expression/ComparisonExpression.java
(__compare); Java 8: Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo
"""

from __future__ import annotations

import math
import re
from typing import Final

from skylarkmq.protocol.headers.fields import LONG_MAX

_PLAIN_DIGITS: Final = 9  # so many digits fit into an Integer
_DIGITS_MAX: Final = 19
_BMP_MAX: Final = "\uffff"
_BLANKS: Final = "".join(map(chr, range(0x21)))  # what String.trim takes away

# Possessive, so linear in the text.
_DECIMAL: Final = re.compile(
    r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?", re.ASCII
)
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]++\.?[0-9a-fA-F]*+|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++", re.ASCII
)
_SPECIAL: Final = {
    sign + name: (-value if sign == "-" else value)
    for sign in ("", "+", "-")
    for name, value in (("NaN", math.nan), ("Infinity", math.inf))
}


class EvaluationError(ValueError):
    """A value cannot be compared as the expression asks."""


def to_integer(value: bytes, low: int, high: int) -> int:
    """Read a property as Integer.valueOf or Long.valueOf does.

    Raises:
        EvaluationError: it is no whole number within `low` and `high`.
    """
    if value.isdigit() and len(value) <= _PLAIN_DIGITS:
        return int(value)
    text = value.decode("utf-8", "replace")
    digits = text[1:] if text[:1] in ("+", "-") else text
    # Java looks at 16-bit characters, so digits beyond them are none to it.
    if not digits.isdecimal() or max(digits) > _BMP_MAX:
        raise EvaluationError(f"{text[:32]!a} is no whole number")
    significant = digits.lstrip("0")
    number = int(significant or "0") if len(significant) <= _DIGITS_MAX else LONG_MAX + 1
    if text[0] == "-":
        number = -number
    if not low <= number <= high:
        raise EvaluationError(f"{text[:32]!a} is out of range")
    return number


def to_double(value: bytes) -> float:
    """Read a property as Double.valueOf does.

    Raises:
        EvaluationError: it is no number.
    """
    text = value.decode("utf-8", "replace").strip(_BLANKS)
    special = _SPECIAL.get(text)
    if special is not None:
        return special
    digits = text[:-1] if text[-1:] in ("d", "D", "f", "F") else text
    if _DECIMAL.fullmatch(digits):
        return float(digits)
    if _HEXADECIMAL.fullmatch(digits):
        try:
            return float.fromhex(digits)
        except OverflowError:
            return -math.inf if digits[0] == "-" else math.inf
    raise EvaluationError(f"{text[:32]!a} is no number")


def to_boolean(value: bytes) -> bool:
    """Read a property as Boolean.valueOf does."""
    return value.lower() == b"true"


def compare_doubles(left: float, right: float) -> int:
    """Order two doubles as Double.compareTo does: -0.0 before 0.0, NaN after all else."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right)


def _rank(value: float) -> int:
    """Return the place among values that neither `<` nor `>` tells apart."""
    if value != value:
        return 2
    return 0 if value == 0 and math.copysign(1.0, value) < 0 else 1


def compare_numbers(left: float, right: float) -> int:
    """Order two constants; a whole number compared with a double becomes one."""
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return compare_doubles(float(left), float(right))
