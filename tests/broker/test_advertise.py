"""Which address clients are told, by what is configured, bound and there."""

import errno
import ipaddress
import re
import socket
from pathlib import Path

import pytest

from skylarkmq.broker.config.config_file import Sources, effective_values, load_broker_config
from skylarkmq.broker.net import addresses
from skylarkmq.broker.net.addresses import (
    advertised_address,
    in_container,
    interface_addresses,
    is_loopback,
    is_own,
    why_unreachable,
)
from skylarkmq.common.config_fields import ConfigError


@pytest.mark.parametrize(
    ("configured", "bound", "interfaces", "told"),
    [
        ("mq.example.com", "127.0.0.1", [], "mq.example.com"),
        ("10.0.0.9", "0.0.0.0", ["10.0.0.1", "10.1.0.1"], "10.0.0.9"),
        (None, "127.0.0.1", ["10.0.0.1"], "127.0.0.1"),
        ("", "localhost", ["10.0.0.1"], "127.0.0.1"),
        (None, "::1", ["10.0.0.1"], "::1"),
        (None, "127.0.0.2", ["10.0.0.1"], "127.0.0.2"),
        (None, "10.0.0.1", ["10.0.0.1", "10.1.0.1"], "10.0.0.1"),
        (None, "0.0.0.0", ["127.0.0.1", "10.0.0.1"], "10.0.0.1"),
        (None, "::", ["127.0.0.1", "10.0.0.1", "10.0.0.1"], "10.0.0.1"),
    ],
)
def test_the_rule(configured: str | None, bound: str, interfaces: list[str], told: str) -> None:
    assert advertised_address(configured, bound, interfaces) == told


@pytest.mark.parametrize("interfaces", [[], ["127.0.0.1"], ["10.0.0.1", "172.17.0.1"]])
def test_a_guess_is_refused_and_names_the_key(interfaces: list[str]) -> None:
    with pytest.raises(ConfigError, match="--set brokerIP1=") as caught:
        advertised_address(None, "0.0.0.0", interfaces)
    assert caught.value.key == "brokerIP1"


def test_the_interfaces_of_this_machine_are_addresses() -> None:
    for address in interface_addresses():
        ipaddress.ip_address(address)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two addresses, which is no container."""

    def bind(host: str, port: int) -> socket.socket:
        if host not in ("10.0.0.1", "10.1.0.1"):
            raise OSError(errno.EADDRNOTAVAIL, "no such address here")
        return socket.socket()

    def resolve(host: str) -> str:
        if host.endswith(".invalid"):
            raise OSError("unknown name")
        return {"mq.example.com": "10.0.0.1"}.get(host, host)

    monkeypatch.setattr(addresses, "bind", lambda host, port: bind(resolve(host), port))
    monkeypatch.setattr(addresses, "resolve", resolve)


@pytest.mark.parametrize(
    ("settings", "listens"),
    [
        (("brokerIP1=10.0.0.1",), "10.0.0.1"),
        (("brokerIP1=mq.example.com",), "mq.example.com"),
        (("brokerIP1=10.0.0.1", "bindAddress=127.0.0.1"), "127.0.0.1"),
        (("brokerIP1=203.0.113.7",), "127.0.0.1"),
        (("brokerIP1=no.such.invalid",), "127.0.0.1"),
        ((), "127.0.0.1"),
    ],
)
def test_it_listens_where_it_advertises(
    machine: None, settings: tuple[str, ...], listens: str
) -> None:
    """A broker.conf of RocketMQ's has brokerIP1 and no bindAddress."""
    loaded = load_broker_config(Sources(settings=settings, host_name="host", is_own=is_own))
    assert loaded.config.bind_address == listens
    (origin,) = [from_ for key, _, from_ in effective_values(loaded) if key == "bindAddress"]
    assert ("as brokerIP1" in origin) is (len(settings) == 1 and listens != "127.0.0.1")


@pytest.mark.parametrize(
    ("told", "bound", "said"),
    [
        ("10.0.0.1", "10.0.0.1", ""),
        ("mq.example.com", "0.0.0.0", ""),
        ("127.0.0.1", "127.0.0.1", ""),
        ("no.such.invalid", "127.0.0.1", ""),
        ("mq.example.com", "127.0.0.1", "set bindAddress to mq.example.com"),
        ("10.1.0.1", "10.0.0.1", "set bindAddress to 10.1.0.1"),
        ("203.0.113.7", "127.0.0.1", "set bindAddress to 0.0.0.0"),
        ("203.0.113.7", "0.0.0.0", "no address of this machine"),
        ("203.0.113.7", "10.0.0.1", "no address of this machine"),
    ],
)
def test_an_address_that_nobody_reaches_is_told(
    machine: None, told: str, bound: str, said: str
) -> None:
    why = why_unreachable(told, bound, contained=False)
    assert said in why and bool(said) is bool(why)


def test_a_container_is_told_the_address_of_its_host(machine: None) -> None:
    assert not why_unreachable("203.0.113.7", "0.0.0.0", contained=True)
    assert "bindAddress" in why_unreachable("203.0.113.7", "127.0.0.1", contained=True)


def test_the_loopback_is_nobodys_own() -> None:
    assert not is_own("127.0.0.1") and not is_own("0.0.0.0") and not is_own("203.0.113.7")
    for address in interface_addresses():
        assert is_own(address) is not is_loopback(address)


@pytest.mark.parametrize("code", [errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES])
def test_an_address_that_is_refused_has_a_cure(code: int) -> None:
    text = str(addresses.refused(OSError(code, "x"), "10.0.0.1", 80, "listenPort"))
    assert "10.0.0.1:80, which listenPort names: " in text and re.search("; .* set ", text)


def test_signs_of_a_container(tmp_path: Path) -> None:
    assert not in_container({}, tmp_path)
    assert in_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    for sign in (".dockerenv", "run/.containerenv"):
        path = tmp_path / sign
        path.parent.mkdir(exist_ok=True)
        path.touch()
        assert in_container({}, tmp_path)
        path.unlink()


def test_loopback() -> None:
    assert is_loopback("127.1.2.3") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("10.0.0.1") and not is_loopback("example.com")
