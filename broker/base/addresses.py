"""White lists: which addresses a pattern means, as RocketMQ writes them.

    *                                 every address; so does a star in every place
    192.168.0.7, fe80::1              one address
    192.168.*.*, 192.168.0-3.*        a star is 0 to 255, 0 to ffff in IPv6
    192.168.1.{7,9}                   of some last parts
    192.168.1.7,192.168.1.9           one pattern or the other
    (blank)                           no address

A peer of IPv4 on a socket of IPv6 (`::ffff:192.168.0.7`) is the peer of IPv4. An address is
compared by its numbers, never by its text.

Unlike RocketMQ, where whatever follows the first star or range of a pattern does not count: there
`192.168.*.7` means all of `192.168.*.*`. What RocketMQ would fail on (`192.168.1.0/24`,
`010.0.0.1`) is refused with what to write instead.

Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../plain/RemoteAddressStrategyFactory.java,
acl/.../common/AclUtils.java
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

PATTERNS_MAX: Final = 1000
"""Patterns of one list, each of which a new connection is compared with."""
TEXT_MAX: Final = 8192
"""Characters of one entry."""
_COMMA: Final = re.compile(r",(?![^{]*\})")
_EVERYTHING: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_HEXADECIMAL: Final = re.compile(r"[0-9a-fA-F]{1,4}", re.ASCII)
_SHOWN_MAX: Final = 80
_HOW: Final = (
    "write an address, `*` or a range such as 1-9 in place of its later parts, {1,2} in place of "
    "its last one, or several with commas between them"
)

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def split_patterns(text: str) -> list[str]:
    """Return the patterns of a text with commas between them; those in braces stay."""
    return [pattern for part in _COMMA.split(text[:TEXT_MAX]) if (pattern := part.strip())]


class AddressError(ValueError):
    """A pattern that means no addresses; the text says what to write."""


class AddressList:
    """The addresses that some patterns mean. Immutable."""

    __slots__ = ("_everything", "_of_four", "_of_six")

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """Read patterns.

        Raises:
            AddressError: one cannot be read, or there are too many.
        """
        self._everything = False
        of_four: list[tuple[Ranges, ...]] = []
        of_six: list[tuple[Ranges, ...]] = []
        for text in patterns:
            if len(text) > TEXT_MAX:
                raise AddressError(f"an entry of a white list has {TEXT_MAX} characters at most")
            for pattern in split_patterns(text):
                if pattern in _EVERYTHING:
                    self._everything = True
                elif ":" in pattern:
                    _six(pattern, of_four, of_six)
                else:
                    of_four.append(_parts(pattern, pattern.split("."), 4, _DECIMAL, 10, 255))
                if len(of_four) + len(of_six) > PATTERNS_MAX:
                    raise AddressError(f"a white list has {PATTERNS_MAX} patterns at most")
        self._of_four = tuple(of_four)
        self._of_six = tuple(of_six)

    def matches(self, address: str) -> bool:
        """Return whether an address without its port is among them; no address never is."""
        try:
            peer = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if self._everything:
            return True
        if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
            peer = peer.ipv4_mapped
        if isinstance(peer, ipaddress.IPv4Address):
            return any(_within(tuple(peer.packed), each) for each in self._of_four)
        packed = peer.packed
        groups = tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))
        return any(_within(groups, each) for each in self._of_six)

    def __bool__(self) -> bool:
        return self._everything or bool(self._of_four or self._of_six)


def _within(numbers: tuple[int, ...], pattern: tuple[Ranges, ...]) -> bool:
    return all(
        any(low <= number <= high for low, high in ranges)
        for number, ranges in zip(numbers, pattern, strict=True)
    )


def _parts(
    pattern: str, parts: list[str], count: int, digits: re.Pattern[str], base: int, top: int
) -> tuple[Ranges, ...]:
    if len(parts) != count:
        raise _error(pattern, f"it has {len(parts)} parts and not {count}")
    ranges = [
        _ranges(pattern, part.strip(), digits, base, top, is_last=place == count - 1)
        for place, part in enumerate(parts)
    ]
    if ranges[0][0][0] != ranges[0][0][1]:
        raise _error(pattern, "its first part is to be a number")
    return tuple(ranges)


def _ranges(
    pattern: str, part: str, digits: re.Pattern[str], base: int, top: int, *, is_last: bool
) -> Ranges:
    if part == "*":
        return ((0, top),)
    is_set = is_last and part.startswith("{") and part.endswith("}")
    texts = part[1:-1].split(",") if is_set else [part]
    found: list[Range] = []
    for text in texts:
        low_text, mark, high_text = text.strip().partition("-")
        if is_set and mark:
            raise _error(pattern, "there is a range between braces")
        bounds = (low_text, high_text) if mark else (low_text, low_text)
        if not all(digits.fullmatch(bound) for bound in bounds):
            raise _error(pattern, f"{text[:_SHOWN_MAX]!r} is no part of an address")
        low, high = (int(bound, base) for bound in bounds)
        if not low <= high <= top:
            raise _error(pattern, f"{text!r} is not within 0 to {top:{'x' if base == 16 else 'd'}}")
        found.append((low, high))
    return tuple(found)


def _six(pattern: str, of_four: list[tuple[Ranges, ...]], of_six: list[tuple[Ranges, ...]]) -> None:
    """Read a pattern with colons; an address of IPv4 in its long form is one of IPv4."""
    if not any(sign in pattern for sign in "*-{"):
        try:
            exact = ipaddress.IPv6Address(pattern)
        except ValueError as error:
            raise _error(pattern, "it is no address of IPv6") from error
        if exact.scope_id is not None:
            raise _error(pattern, "an address names no interface here")
        if exact.ipv4_mapped is not None:
            of_four.append(tuple(((byte, byte),) for byte in exact.ipv4_mapped.packed))
            return
        parts = exact.exploded.split(":")
    else:
        head, mark, tail = pattern.partition("::")
        if "::" in tail:
            raise _error(pattern, "`::` stands in it twice")
        left, right = (text.split(":") if text else [] for text in (head, tail))
        if mark and len(left) + len(right) > 7:
            raise _error(pattern, "`::` stands for no part")
        zeros = ["0"] * (8 - len(left) - len(right)) if mark else []
        parts = left + zeros + right
    of_six.append(_parts(pattern, parts, 8, _HEXADECIMAL, 16, 0xFFFF))


def _error(pattern: str, why: str) -> AddressError:
    return AddressError(f"the white list's {pattern[:_SHOWN_MAX]!r} cannot be read: {why}; {_HOW}")
