"""Hosts: their bytes in a record, their text, and dual-stack listeners."""

import pytest

from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.host_address import unpack_host
from skylarkmq.protocol.message import HostAddress

CASES = [
    (HostAddress("192.168.1.10", 51234), "c0a8010a0000c822", "192.168.1.10:51234"),
    (HostAddress("127.0.0.1", 10911), "7f00000100002a9f", "127.0.0.1:10911"),
    (HostAddress("0.0.0.0", 0), "0000000000000000", "0.0.0.0:0"),
    (HostAddress("255.255.255.255", 65535), "ffffffff0000ffff", "255.255.255.255:65535"),
    (HostAddress("::1", 10911), "00" * 15 + "0100002a9f", "[::1]:10911"),
    (
        HostAddress("2001:db8::1", 5000),
        "20010db800000000000000000000000100001388",
        "[2001:db8::1]:5000",
    ),
]


@pytest.mark.parametrize(("host", "packed", "text"), CASES)
def test_both_ways(host: HostAddress, packed: str, text: str) -> None:
    assert host.pack().hex() == packed
    assert HostAddress.unpack(bytes.fromhex(packed)) == host
    assert str(host) == text


def test_an_ipv4_peer_of_a_dual_stack_socket_is_ipv4() -> None:
    assert HostAddress("::ffff:192.168.1.10", 51234).pack().hex() == "c0a8010a0000c822"


def test_a_scope_does_not_reach_the_record() -> None:
    assert HostAddress("fe80::1%eth0", 1).pack() == HostAddress("fe80::1", 1).pack()


@pytest.mark.parametrize(
    "host",
    [
        HostAddress("", 1),
        HostAddress("localhost", 1),
        HostAddress("256.0.0.1", 1),
        HostAddress("1.2.3", 1),
        HostAddress("01.2.3.4", 1),
        HostAddress("127.0.0.1", -1),
        HostAddress("127.0.0.1", 65536),
    ],
)
def test_what_is_no_host_is_a_local_error(host: HostAddress) -> None:
    with pytest.raises(LocalProtocolError):
        host.pack()


@pytest.mark.parametrize("size", [0, 4, 7, 9, 16, 19, 21])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(LocalProtocolError):
        HostAddress.unpack(bytes(size))


def test_a_port_no_socket_has_is_shown_as_it_stands() -> None:
    assert unpack_host(bytes([1, 2, 3, 4, 255, 255, 255, 255])) == ("1.2.3.4", -1)


def test_the_cache_is_bounded() -> None:
    for number in range(5000):
        unpack_host(number.to_bytes(8, "big"))
    assert unpack_host.cache_info().currsize <= 4096
