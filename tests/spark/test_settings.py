"""Connection settings from options: each value checked, no secret shown."""

from __future__ import annotations

import pickle

import pytest

from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.settings import ConnectionSettings, TlsSettings

NAMES = {"nameServer": "a:9876"}


def test_all_options() -> None:
    given = {
        "nameserver": "a:9876; b:9877",  # Spark hands keys over in lower case
        "accesskey": "AK",
        "secretkey": "hidden-1",
        "securitytoken": "hidden-2",
        "tls.cafile": "ca.pem",
        "tls.certfile": "own.pem",
        "tls.keyfile": "own.key",
        "tls.keypassword": "hidden-3",
        "tls.verify": "false",
        "tls.servername": "broker.example",
        "addressmap": "10.0.0.5:10911=broker-a:10911",
        "namespace": "shop",
        "pulltimeoutms": "5s",
        "fetchoffset.numretries": "7",
        "fetchoffset.retryintervalms": "20",
        "retrytimeoutms": "2m",
        "topic": "T",
    }
    settings = ConnectionSettings.from_options(given)
    assert settings.name_servers == ("a:9876", "b:9877")
    assert settings.credentials is not None
    assert settings.credentials.secret_key == "hidden-1"
    assert settings.tls == TlsSettings(
        "ca.pem", "own.pem", "own.key", "hidden-3", False, "broker.example"
    )
    assert settings.dialled("10.0.0.5:10911") == "broker-a:10911"
    assert settings.dialled("10.0.0.6:10911") == "10.0.0.6:10911"
    assert settings.request_timeout_s == 5
    assert (settings.retries, settings.retry_interval_s) == (7, 0.02)
    assert settings.retry_timeout_s == 120
    assert "hidden" not in repr(settings)
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert hash(again) == hash(settings)


def test_defaults() -> None:
    settings = ConnectionSettings.from_options(NAMES)
    assert settings == ConnectionSettings(("a:9876",))
    assert (settings.request_timeout_s, settings.retries, settings.retry_interval_s) == (3, 3, 0.01)
    assert settings.tls is None
    assert settings.credentials is None


@pytest.mark.parametrize("given", [{"tls": "true"}, {"tls.caFile": "x"}, {"tls.verify": "true"}])
def test_tls_is_on(given: dict[str, str]) -> None:
    assert ConnectionSettings.from_options({**NAMES, **given}).tls is not None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "option nameServer is missing"),
        ({**NAMES, "brokers": "a:1"}, "option brokers is unknown: .* option nameServer names"),
        ({"nameServer": "nowhere"}, "nameServer.*'nowhere' is no host:port"),
        ({"nameServer": "a:99999"}, "host:port"),
        ({**NAMES, "accessKey": "AK"}, "secretKey is missing.*together"),
        ({**NAMES, "secretKey": "hidden"}, "accessKey is missing"),
        ({**NAMES, "securityToken": "hidden"}, "accessKey is missing"),
        ({**NAMES, "tls": "maybe"}, "tls is true or false"),
        ({**NAMES, "tls": "false", "tls.caFile": "x"}, "tls.caFile.*switches it off"),
        ({**NAMES, "tls.keyFile": "x"}, "tls.certFile is missing"),
        ({**NAMES, "namespace": "a%b"}, "namespace"),
        ({**NAMES, "addressMap": "a:1"}, "addressMap is pairs"),
        ({**NAMES, "pullTimeoutMs": "0"}, "pullTimeoutMs.*at least 1"),
        ({**NAMES, "fetchOffset.numRetries": "-1"}, "numRetries"),
    ],
)
def test_what_is_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        ConnectionSettings.from_options(given)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "bad", [{"request_timeout_s": 0}, {"retries": -1}, {"namespace": "%"}, {"name_servers": ()}]
)
def test_settings_made_by_hand_are_checked(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ConnectionSettings(**{"name_servers": ("a:1",), **bad})  # type: ignore[arg-type]
