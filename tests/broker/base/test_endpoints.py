from __future__ import annotations

import pytest

from skylarkmq.broker.base.endpoints import read_endpoints


def test_endpoints_are_read() -> None:
    text = " http://a:2379, https://etcd-1.example/ ,http://[::1]:2379,"
    assert [str(endpoint) for endpoint in read_endpoints(text)] == [
        "http://a:2379",
        "https://etcd-1.example:443",
        "http://[::1]:2379",
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "a:2379", "a", "ftp://a:1", "http://", "http://a:0", "http://a:99999"),
        *("http://a:x", "http://a/v3", "http://a?b", "http://a#b", "http://a:1,http://a:1"),
        *("http://[::1:2379", "http://a b:1", "http://ä\x00:1"),
    ],
)
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        read_endpoints(text)


def test_a_password_in_an_endpoint_is_not_shown() -> None:
    with pytest.raises(ValueError, match="no user and no password") as told:
        read_endpoints("http://root:hunter2@a:2379")
    assert "hunter2" not in str(told.value)
