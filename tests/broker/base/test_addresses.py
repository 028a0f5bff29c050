"""White lists: what each form of a pattern means, and what is refused."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.broker.base.addresses import (
    PATTERNS_MAX,
    TEXT_MAX,
    AddressError,
    AddressList,
    split_patterns,
)
from tests.support.amounts import examples


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("  ", [], ["127.0.0.1"]),
        ("*", ["1.2.3.4", "::1"], ["", "localhost", "1.2.3"]),
        ("*.*.*.*", ["1.2.3.4"], []),
        ("192.168.0.7", ["192.168.0.7", "::ffff:192.168.0.7"], ["192.168.0.70", "192.168.0.77"]),
        ("192.168.*.*", ["192.168.0.0", "192.168.255.255"], ["192.169.0.0", "19.2.168.1"]),
        ("192.168.*.7", ["192.168.3.7"], ["192.168.3.8"]),
        ("192.168.1-3.*", ["192.168.1.0", "192.168.3.9"], ["192.168.0.1", "192.168.4.1"]),
        ("192.168.1.{7,9}", ["192.168.1.7", "192.168.1.9"], ["192.168.1.8", "192.168.1.79"]),
        ("10.0.0.1,10.0.0.{2,3}", ["10.0.0.1", "10.0.0.3"], ["10.0.0.4"]),
        ("0.0.0.0", ["0.0.0.0"], ["127.0.0.1", "8.8.8.8"]),
        ("::", ["::"], ["::1", "127.0.0.1"]),
        ("fe80::1", ["fe80::1", "fe80:0:0:0:0:0:0:1", "fe80::1%eth0"], ["fe80::2"]),
        ("FE80::1-F:*", ["fe80::a:ffff"], ["fe80::10:1"]),
        ("2001:db8::{1,a}", ["2001:db8::a"], ["2001:db8::2"]),
        ("::ffff:10.0.0.1", ["10.0.0.1"], ["::1"]),
        ("*:*:*:*:*:*:*:*", ["::1", "1.2.3.4"], []),
    ],
)
def test_what_a_pattern_means(pattern: str, inside: list[str], outside: list[str]) -> None:
    addresses = AddressList([pattern])
    assert [peer for peer in inside if not addresses.matches(peer)] == []
    assert [peer for peer in outside if addresses.matches(peer)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "192.168.1.0/24", "010.0.0.1", "0x7f.0.0.1", "127.1", "1.2.3", "1.2.3.4.5", "*.1.2.3",
        "1-9.2.3.4", "1.2.3.4-2", "1.2.3.256", "1.2.3.-4", "1.2.3.4-", "1.2.3.{4", "1.2.3.{1-2}",
        "1.{2,3}.*.*", "localhost", "\u0661.2.3.4", "1::2::*", "1:2:3:4:5:6:7::*", "12345::*",
        "fe80::1%eth0", "::ffff:1.2.3.*", "g::1", "1.2.3.4 5", "1.2.3.4:80", "[::1]",
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_refused_with_a_cure(pattern: str) -> None:
    with pytest.raises(AddressError, match="write an address"):
        AddressList([pattern])


def test_a_list_has_bounds() -> None:
    with pytest.raises(AddressError, match="characters at most"):
        AddressList(["1.2.3.4," * TEXT_MAX])
    with pytest.raises(AddressError, match="patterns at most"):
        AddressList(["1.2.3.4"] * (PATTERNS_MAX + 1))


def test_commas_in_braces_part_nothing() -> None:
    assert split_patterns(" 1.2.3.{4,5}, 6.7.8.9 ,,") == ["1.2.3.{4,5}", "6.7.8.9"]


@given(st.ip_addresses(), st.ip_addresses())
def test_an_address_means_itself_alone(one: object, other: object) -> None:
    addresses = AddressList([str(one)])
    assert addresses.matches(str(one))
    mapped = [getattr(each, "ipv4_mapped", None) or each for each in (one, other)]
    assert addresses.matches(str(other)) == (mapped[0] == mapped[1])


@examples(30, 100)
@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), min_size=3, max_size=3),
       st.ip_addresses(v=4))  # fmt: skip
def test_ranges_mean_what_lies_in_all_of_them(
    bounds: list[tuple[int, int]], peer: ipaddress.IPv4Address
) -> None:
    ranges = [sorted(pair) for pair in bounds]
    pattern = ".".join(["10", *(f"{low}-{high}" for low, high in ranges)])
    first, *rest = peer.packed
    wanted = first == 10 and all(
        low <= byte <= high for byte, (low, high) in zip(rest, ranges, strict=True)
    )
    assert AddressList([pattern]).matches(str(peer)) == wanted


@given(st.text(alphabet="0123456789abf.:*-{}, /%", max_size=40), st.ip_addresses())
def test_no_text_fails_otherwise(text: str, peer: object) -> None:
    try:
        addresses = AddressList([text])
    except AddressError as error:
        assert "write an address" in str(error)
    else:
        addresses.matches(str(peer))
