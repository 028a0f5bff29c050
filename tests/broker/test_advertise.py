"""Which address clients are told, by what is configured, bound and there."""

import ipaddress
from pathlib import Path

import pytest

from skylarkmq.broker.net.addresses import (
    advertised_address,
    in_container,
    interface_addresses,
    is_loopback,
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
