"""Certificates from files: what cannot be used names key and cure; what changes is taken."""

from __future__ import annotations

import logging
import ssl
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.net.tls_context import (
    LOOK_INTERVAL_S,
    OutgoingTls,
    ThrowAwayContext,
    WatchedContext,
    expiry_s,
    server_contexts,
)
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.extras import how_to_install
from tests.broker.net.tls_rig import Client, Rig
from tests.support.certificates import Authority
from tests.support.manual_clock import ManualClock
from tests.support.workers import ManualWorker


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def split(file: Path) -> tuple[Path, Path]:
    """The certificate and the key of a file, each in its own."""
    text = file.read_text()
    place = text.index("-----BEGIN CERTIFICATE")
    key, certificate = file.with_suffix(".key"), file.with_suffix(".crt")
    key.write_text(text[:place])
    certificate.write_text(text[place:])
    return certificate, key


def watched(config: TlsConfig) -> tuple[WatchedContext, ManualClock, ManualWorker]:
    clock, worker = ManualClock(int(time.time() * 1000)), ManualWorker()
    contexts = server_contexts(config, clock, worker.submit)
    assert isinstance(contexts, WatchedContext)
    contexts.load()
    contexts.start()
    return contexts, clock, worker


async def serial(context: ssl.SSLContext | None, authority: Authority) -> int:
    """Which certificate a client of this context is shown."""
    rig, client = Rig(context), Client(authority.client_context())
    await rig.shake_hands(rig.connect()[0], client)
    found: Any = client.object.getpeercert()
    return int(found["serialNumber"], 16)


async def test_certificate_and_key_in_one_file_or_in_two(authority: Authority) -> None:
    file = authority.certificate_file("broker.example")
    one, _, _ = watched(TlsConfig(tls_server_cert_path=file))
    certificate, key = split(file)
    two, _, _ = watched(TlsConfig(tls_server_cert_path=certificate, tls_server_key_path=key))
    assert await serial(one.current, authority) == await serial(two.current, authority)


async def test_an_encrypted_key(authority: Authority) -> None:
    certificate, key = split(authority.certificate_file("broker.example"))
    loaded = load_pem_private_key(key.read_bytes(), None)
    encrypted = BestAvailableEncryption(b"hush")
    key.write_bytes(loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encrypted))
    paths: dict[str, Any] = {"tls_server_cert_path": certificate, "tls_server_key_path": key}
    contexts, _, _ = watched(TlsConfig(**paths, tls_server_key_password="hush"))
    assert await serial(contexts.current, authority)
    for password in (None, "wrong"):
        with pytest.raises(ConfigError, match=r"keyPath=.*keyPassword is not its password") as why:
            watched(TlsConfig(**paths, tls_server_key_password=password))
        assert "wrong" not in str(why.value)


@pytest.mark.parametrize(
    ("certificate", "key", "trust", "why"),
    [
        ("missing", "own", None, r"tls.server.certPath=.*missing: it cannot be read: No such file"),
        ("own", "missing", None, r"tls.server.keyPath=.*missing: it cannot be read: No such file"),
        ("text", "own", None, r"tls.server.certPath=.*text: there is no certificate in it"),
        ("own", "text", None, r"tls.server.keyPath=.*text: there is no private key in it"),
        ("own", "other", None, r"tls.server.keyPath=.*: it is not the key of the certificate in"),
        ("own", "own", "text", r"tls.server.trustCertPath=.*text: there is no certificate in it"),
        ("own", "own", "missing", r"tls.server.trustCertPath=.*missing: it cannot be read"),
    ],
)
def test_files_that_cannot_be_used(
    authority: Authority, certificate: str, key: str, trust: str | None, why: str
) -> None:
    folder = authority.ca_file.parent
    (folder / "text").write_text("some text")
    certificate_file, key_file = split(authority.certificate_file("broker.example"))
    _, other_key = split(authority.certificate_file("broker.example"))
    files = {"missing": folder / "missing", "text": folder / "text", "other": other_key}
    config = TlsConfig(
        tls_server_cert_path=files.get(certificate, certificate_file),
        tls_server_key_path=files.get(key, key_file),
        tls_server_need_client_auth="none" if trust is None else "optional",
        tls_server_trust_cert_path=None if trust is None else files[trust],
    )
    with pytest.raises(ConfigError, match=why):
        watched(config)


async def test_changed_files_count_for_new_connections(authority: Authority) -> None:
    file = authority.certificate_file("broker.example")
    contexts, clock, worker = watched(TlsConfig(tls_server_cert_path=file))
    rig, client = Rig(contexts.current), Client(authority.client_context())
    socket, connection = rig.connect()
    await rig.shake_hands(socket, client)
    before = await serial(contexts.current, authority)

    file.write_bytes(authority.certificate_file("broker.example").read_bytes())
    clock.advance(LOOK_INTERVAL_S)
    assert await serial(contexts.current, authority) == before  # read off the loop
    worker.step()
    assert await serial(contexts.current, authority) != before
    connection.send(b"still there", at_once=True)
    assert client.read(socket.take_written()) == b"still there"

    last = contexts.current
    clock.advance(LOOK_INTERVAL_S)
    worker.step()
    assert contexts.current is last  # nothing has changed
    contexts.stop()
    assert clock.pending_count == 0


async def test_files_that_do_not_fit_leave_the_last_good_ones(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = split(authority.certificate_file("broker.example"))
    contexts, clock, worker = watched(
        TlsConfig(tls_server_cert_path=certificate, tls_server_key_path=key)
    )
    good = contexts.current
    new_certificate, new_key = split(authority.certificate_file("broker.example"))
    certificate.write_bytes(new_certificate.read_bytes())
    for _ in range(3):
        clock.advance(LOOK_INTERVAL_S)
        worker.step()
    assert contexts.current is good
    assert caplog.text.count("TLS goes on with the certificates it has") == 1
    assert "not the key of the certificate" in caplog.text
    key.write_bytes(new_key.read_bytes())
    clock.advance(LOOK_INTERVAL_S)
    worker.step()
    assert contexts.current is not good
    certificate.unlink()
    for _ in range(3):
        clock.advance(LOOK_INTERVAL_S)
        worker.step()
    assert caplog.text.count("TLS goes on with the certificates it has") == 2


async def test_the_certificate_of_test_mode_is_made_for_the_first_who_asks(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    clock, worker = ManualClock(int(time.time() * 1000)), ManualWorker()
    contexts = server_contexts(TlsConfig(), clock, worker.submit)
    contexts.load()
    contexts.start()
    assert isinstance(contexts, ThrowAwayContext) and worker.idle
    calls: list[int] = []
    contexts.want(lambda: calls.append(1))
    contexts.want(lambda: calls.append(2))
    worker.step()
    assert calls == [1, 2] and worker.idle
    assert caplog.text.count("no client can check") == 1
    trusting = authority.client_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    rig, client = Rig(contexts.current), Client(trusting)
    await rig.shake_hands(rig.connect()[0], client)
    assert rig.gate.results["tls"] == 1
    assert client.object.version() == "TLSv1.3"
    pem = ssl.DER_cert_to_PEM_cert(client.object.getpeercert(True) or b"").encode()
    assert expiry_s(pem) > clock.now_ms() / 1000 + 3000 * 86_400  # a time of four digits too


def test_test_mode_without_its_library(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    worker = ManualWorker()
    contexts = server_contexts(TlsConfig(), ManualClock(), worker.submit)
    calls: list[int] = []
    contexts.want(lambda: calls.append(1))
    worker.step()
    contexts.want(lambda: calls.append(2))
    assert calls == [1, 2] and contexts.current is None
    assert how_to_install("tls") in contexts.failure
    assert caplog.text.count("pip install") == 1


def test_neither_a_certificate_nor_test_mode() -> None:
    contexts = server_contexts(TlsConfig(tls_test_mode_enable=False), ManualClock())
    assert isinstance(contexts, ThrowAwayContext) and "tls.server.certPath" in contexts.failure


@pytest.mark.parametrize(
    ("lasts", "told"),
    [
        (timedelta(days=-1), "-1.pem has expired: peers refuse it"),
        (timedelta(days=10), "expires in 10.0 days"),
        (timedelta(days=100), ""),
    ],
)
def test_a_certificate_that_is_about_to_expire(
    authority: Authority, lasts: timedelta, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    file = authority.certificate_file("broker.example", lasts=lasts)
    contexts, clock, _ = watched(TlsConfig(tls_server_cert_path=file))
    assert abs(contexts.expires_s - clock.now_ms() / 1000 - lasts.total_seconds()) < 60
    assert (told in caplog.text) if told else not caplog.records


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tls_server_mode": "on"}, "tls.server.mode=on: use one of disabled, permissive"),
        ({"tls_server_need_client_auth": "must"}, "tls.server.need.client.auth=must: use one of"),
        ({"tls_server_need_client_auth": "require"}, "tls.server.trustCertPath"),
        ({"tls_server_key_path": Path("k")}, "name the certificate .* in tls.server.certPath"),
        ({"tls_client_key_path": Path("k")}, "name the certificate .* in tls.client.certPath"),
        (
            {"tls_server_mode": "enforcing", "tls_test_mode_enable": False},
            r"name the certificate in tls.server.certPath \(tls.test.mode.enable is false\)",
        ),
    ],
)
def test_settings_that_contradict_each_other(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TlsConfig(**keys)


def test_the_other_way_round(authority: Authority) -> None:
    clock, worker = ManualClock(), ManualWorker()
    file = authority.certificate_file("broker")
    outgoing = OutgoingTls(
        TlsConfig(tls_client_trust_cert_path=authority.ca_file, tls_client_cert_path=file),
        clock,
        worker.submit,
    )
    first = outgoing.client.context
    assert first is not None
    assert first.check_hostname and first.verify_mode == ssl.CERT_REQUIRED
    outgoing.contexts.start()
    file.write_bytes(authority.certificate_file("broker").read_bytes())
    clock.advance(LOOK_INTERVAL_S)
    worker.step()
    assert outgoing.client.context is not first

    blind = OutgoingTls(TlsConfig(tls_client_auth_server=False), clock).client.context
    assert blind is not None and blind.verify_mode == ssl.CERT_NONE
    assert TlsConfig(tls_server_mode="enforcing").uses_client_tls
    assert not TlsConfig().uses_client_tls
    assert not TlsConfig(tls_server_mode="enforcing", tls_enable=False).uses_client_tls
