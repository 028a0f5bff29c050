"""Listening sockets: free pairs, taken ports, names."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from skylarkmq.broker.net import addresses
from skylarkmq.broker.net.addresses import (
    FAST_PORT_DISTANCE,
    bind,
    bind_pair,
    bind_three,
    listen,
    port_of,
    resolve,
)
from skylarkmq.broker.net.peer_connection import socket_silence_s
from tests.support.ports import free_ports

HOST = "127.0.0.1"


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on; the one that it would be the fast port of is free."""
    port = free_ports(FAST_PORT_DISTANCE)[0]
    with socket.create_server((HOST, port)):
        yield port


def test_port_zero_takes_a_free_one() -> None:
    bound = bind(HOST, 0)
    assert port_of(bound) > 0
    assert not bound.getblocking()
    bound.close()


def test_a_free_pair_lies_two_apart() -> None:
    main, fast = bind_pair(HOST, 0)
    assert port_of(fast) == port_of(main) - FAST_PORT_DISTANCE
    for each in (main, fast):
        each.listen()
        each.close()


def test_a_free_pair_is_had_alone_before_it_listens() -> None:
    pair = bind_pair(HOST, 0)
    for each in pair:
        with pytest.raises(OSError, match="Address already in use"):
            bind(HOST, port_of(each))
        listen(each, 1)
        each.close()


def test_a_found_port_can_be_bound_again_while_its_connections_end() -> None:
    bound = bind(HOST, 0)
    bound.setblocking(True)
    listen(bound, 1)
    with socket.create_connection((HOST, port_of(bound))):
        accepted, _ = bound.accept()
        accepted.close()  # the side that closes first waits (TIME_WAIT)
    port = port_of(bound)
    bound.close()
    bind(HOST, port).close()


def test_three_free_ports_lie_as_they_are_to() -> None:
    main, fast, third = bind_three(HOST, 1)
    assert port_of(fast) == port_of(main) - FAST_PORT_DISTANCE
    assert port_of(third) == port_of(main) + 1
    for each in (main, fast, third):
        each.listen()
        each.close()


def test_three_ports_are_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mains = list[int]()

    def bind_with_bad_luck(host: str, port: int, *, alone: bool = False) -> socket.socket:
        if mains and port == mains[-1] + 1 and len(mains) < 3:
            raise OSError(errno.EADDRINUSE, "taken")
        bound = bind(host, port, alone=alone)
        if not port:
            mains.append(port_of(bound))
        return bound

    monkeypatch.setattr(addresses, "bind", bind_with_bad_luck)
    main, fast, third = bind_three(HOST, 1)
    assert len(mains) >= 3
    assert port_of(third) == port_of(main) + 1 == mains[-1] + 1
    for each in (main, fast, third):
        each.close()


def test_a_taken_port_is_named(taken: int) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {HOST}:{taken}") as caught:
        bind(HOST, taken)
    assert caught.value.errno == errno.EADDRINUSE


def test_a_taken_fast_port_is_named_and_lets_the_main_one_go(taken: int) -> None:
    main = taken + FAST_PORT_DISTANCE
    with pytest.raises(OSError, match=f"{HOST}:{taken}"):
        bind_pair(HOST, main)
    bind(HOST, main).close()


def test_free_pairs_are_looked_for_past_taken_ones(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = addresses.bind

    def first_beside_the_taken_one(host: str, port: int, *, alone: bool = False) -> socket.socket:
        asked.append(port)
        if len(asked) == 1:
            return real(host, taken + FAST_PORT_DISTANCE)
        return real(host, port, alone=alone)

    monkeypatch.setattr(addresses, "bind", first_beside_the_taken_one)
    main, fast = bind_pair(HOST, 0)
    assert asked[:3] == [0, taken, 0]
    for each in (main, fast):
        each.close()


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1:5"):
        bind("192.0.2.1", 5555)


def test_names_become_addresses() -> None:
    assert resolve("127.0.0.1") == "127.0.0.1"
    assert resolve("::1") == "::1"
    with pytest.raises(OSError):
        resolve("no-such-host.invalid")


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the system does not tell")
def test_the_system_knows_since_when_nothing_has_come() -> None:
    with bind(HOST, 0) as listener:
        listener.setblocking(True)
        listener.listen()
        with socket.create_connection((HOST, port_of(listener))) as peer:
            taken, _ = listener.accept()
            with taken:
                peer.send(b"x")
                assert taken.recv(1) == b"x"
                assert 0 <= socket_silence_s(taken) < 60, "a sane figure"


def test_a_socket_that_is_none_of_tcp_tells_nothing() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert socket_silence_s(one) == 0.0
