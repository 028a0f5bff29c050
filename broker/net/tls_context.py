"""TLS contexts from files: loaded at the start, and anew when a file changes.

New connections get the new context, old ones keep theirs. Files that cannot be used leave the last
good context in force, with one line in the log: a certificate and its key are seldom replaced in
one moment. They are compared by content, so a link that points elsewhere now (Kubernetes) counts.

In test mode there are no files. The certificate is made when the first client asks for it, because
its library takes longer to load than the rest of a start.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../netty/TlsHelper.java; broker/.../
BrokerController.java (the watch over the three files)
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from skylarkmq.broker.config.tls_settings import ClientAuth, TlsConfig
from skylarkmq.common.clock import Clock
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.extras import how_to_install
from skylarkmq.common.first_use import on_first_use
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.remoting.tls import ClientTls

if TYPE_CHECKING:
    import cryptography.hazmat.primitives.asymmetric.ec as ec
    import cryptography.hazmat.primitives.hashes as hashes
    import cryptography.hazmat.primitives.serialization as serialization
    import cryptography.x509 as x509
else:  # of the extra `tls`; by the first handshake in test mode
    ec = on_first_use("cryptography.hazmat.primitives.asymmetric.ec")
    hashes = on_first_use("cryptography.hazmat.primitives.hashes")
    serialization = on_first_use("cryptography.hazmat.primitives.serialization")
    x509 = on_first_use("cryptography.x509")

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 5.0
"""How often the files are read; a new certificate counts so much later."""
THROW_AWAY_DAYS: Final = 3650
EXPIRY_TOLD_DAYS: Final = 30
DAY_S: Final = 86_400
_VERIFY: Final[dict[ClientAuth, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}

_CLIENT_HINT: Final = (
    "A broker's keys for this are tls.enable, tls.client.trustCertPath, tls.client.certPath and "
    "tls.client.authServer (false: any certificate is taken)"
)

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]
Submit = Callable[[Callable[[], Any], Done[Any]], object]
"""Runs a job off the loop and calls `done(result, error)` on it."""


def submit_to_pool(job: Callable[[], T], done: Done[T]) -> None:
    """Run a job on asyncio's threads."""

    def finished(ended: asyncio.Future[T]) -> None:
        if not ended.cancelled():
            error = ended.exception()
            done(None if error else ended.result(), error)

    asyncio.get_running_loop().run_in_executor(None, job).add_done_callback(finished)


class Files:
    """The files of a context by the keys that name them, and how to make the context. Blocks."""

    def __init__(self, paths: dict[str, Path | None], make: Callable[[], ssl.SSLContext]) -> None:
        self._paths = {key: path for key, path in paths.items() if path is not None}
        self._make = make
        self._seen: dict[str, bytes] | None = None
        self.expires_s = 0.0  # Unix time at which the certificate is out of date; 0: there is none
        self.certificate = next(
            (path for key, path in self._paths.items() if key.endswith(".certPath")), None
        )

    def load(self) -> ssl.SSLContext | None:
        """Return a context when the files are not as they were; None: nothing has changed.

        Raises:
            ConfigError: a file cannot be used; not raised again for the same content.
        """
        # Before the context is made: what changes meanwhile is then seen at the next look.
        found = {key: _content(key, path) for key, path in self._paths.items()}
        if found == self._seen:
            return None
        self._seen = found
        context = self._make()
        chain = next((data for key, data in found.items() if key.endswith(".certPath")), None)
        if chain is not None:
            self.expires_s = expiry_s(chain)
        return context


class WatchedContext:
    """A context that follows its files. Loop thread, but for `load`.

    Attributes:
        current: what new connections use; None before `load`, and in test mode until it is wanted.
        failure: why there is none.
        expires_s: Unix time at which the certificate is out of date; 0 when there is none.
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        submit: Submit = submit_to_pool,
        on_change: Callable[[ssl.SSLContext], object] | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        """Take the files; nothing is read yet.

        Args:
            quiet: tell nothing, because others read the same files and tell it.
        """
        self._quiet = quiet
        self.current: ssl.SSLContext | None = None
        self.failure = ""
        self.expires_s = 0.0
        self._files = files
        self._clock = clock
        self._submit = submit
        self._on_change = on_change
        self._timer = IntervalTimer(clock, LOOK_INTERVAL_S, self._look)
        self._looking = False
        self._last_error = ""

    def load(self) -> None:
        """Read the files. Blocks; for the start alone.

        Raises:
            ConfigError: a file cannot be used; names its key.
        """
        self.current = self._files.load()
        self._note_expiry()

    def start(self) -> None:
        """Look for changes from now on."""
        self._timer.start()

    def stop(self) -> None:
        """Look no more."""
        self._timer.stop()

    def _look(self) -> None:
        if not self._looking:
            self._looking = True
            self._submit(self._files.load, self._looked)

    def _looked(self, context: ssl.SSLContext | None, error: BaseException | None) -> None:
        self._looking = False
        if error is not None:
            if str(error) != self._last_error and not self._quiet:
                self._last_error = str(error)
                log.error("TLS goes on with the certificates it has: %s", error)
        elif context is not None:
            self.current = context
            self._last_error = ""
            self._note_expiry()
            if not self._quiet:
                log.info("TLS uses the changed files for new connections")
            if self._on_change is not None:
                self._on_change(context)

    def _note_expiry(self) -> None:
        self.expires_s = self._files.expires_s
        days = (self.expires_s - self._clock.now_ms() / 1000) / DAY_S
        if self.expires_s and days < EXPIRY_TOLD_DAYS and not self._quiet:
            log.warning(
                "the certificate in %s %s",
                self._files.certificate,
                f"expires in {days:.1f} days" if days > 0 else "has expired: peers refuse it",
            )

    def want(self, ready: Callable[[], object]) -> None:
        """Call `ready` when there is a context, or will be none: at once."""
        ready()


class ThrowAwayContext:
    """The context of test mode, made when it is first wanted; the face of `WatchedContext`.

    With a `failure` from the beginning it says why there is no TLS.
    """

    def __init__(
        self,
        clock: Clock,
        submit: Submit = submit_to_pool,
        alpn: tuple[str, ...] = (),
    ) -> None:
        self._alpn = alpn
        self.current: ssl.SSLContext | None = None
        self.failure = ""
        self.expires_s = 0.0
        self._clock = clock
        self._submit = submit
        self._waiting: list[Callable[[], object]] = []

    def load(self) -> None:
        """There is nothing to read."""

    def start(self) -> None:
        """There is nothing to watch."""

    def stop(self) -> None:
        """There is nothing to watch."""

    def want(self, ready: Callable[[], object]) -> None:
        """Call `ready` when there is a context, or `failure` says why there will be none."""
        if self.current is not None or self.failure:
            ready()
            return
        self._waiting.append(ready)
        if len(self._waiting) == 1:
            make = partial(_throw_away_context, self._clock.now_ms(), self._alpn)
            self._submit(make, self._made)

    def _made(self, context: ssl.SSLContext | None, error: BaseException | None) -> None:
        self.current = context
        if context is not None:
            log.warning(
                "TLS with a certificate made for this run, which no client can check; "
                "tls.server.certPath names a real one"
            )
        elif isinstance(error, ModuleNotFoundError):
            self.failure = (
                "test mode makes its certificate with the package cryptography, which is not "
                f"installed: {how_to_install('tls')}. Or name one in tls.server.certPath"
            )
        else:
            self.failure = f"no certificate could be made for test mode: {error!r}"
        if self.failure:
            log.error("TLS is asked for, and refused: %s", self.failure)
        waiting, self._waiting = self._waiting, []
        for ready in waiting:
            ready()


ServerContexts = WatchedContext | ThrowAwayContext


def server_contexts(
    config: TlsConfig,
    clock: Clock,
    submit: Submit = submit_to_pool,
    client_auth: ClientAuth | None = None,
    *,
    quiet: bool = False,
    alpn: tuple[str, ...] = (),
) -> ServerContexts:
    """Return the contexts of a server; nothing is read yet.

    Args:
        client_auth: what is asked of clients; None: what the configuration says.
        alpn: protocols behind TLS that clients may ask for.
        quiet: another listener tells what becomes of the files.
    """
    if config.tls_server_cert_path is not None:
        auth = client_auth or config.tls_server_need_client_auth
        paths = {
            "tls.server.certPath": config.tls_server_cert_path,
            "tls.server.keyPath": config.tls_server_key_path,
            "tls.server.trustCertPath": config.tls_server_trust_cert_path,
        }
        files = Files(paths, partial(server_context, config, auth, alpn))
        return WatchedContext(files, clock, submit, quiet=quiet)
    if config.tls_test_mode_enable:
        return ThrowAwayContext(clock, submit, alpn)
    contexts = ThrowAwayContext(clock)
    contexts.failure = "there is no certificate: name one in tls.server.certPath"
    return contexts


def server_context(
    config: TlsConfig, client_auth: ClientAuth, alpn: tuple[str, ...] = ()
) -> ssl.SSLContext:
    """Return a context with the certificate that is configured. Blocks.

    Raises:
        ConfigError: a file cannot be used.
    """
    assert config.tls_server_cert_path is not None
    context = _empty_server_context(alpn)
    _load_chain(
        context,
        "tls.server",
        config.tls_server_cert_path,
        config.tls_server_key_path,
        config.tls_server_key_password,
    )
    if client_auth != "none":
        assert config.tls_server_trust_cert_path is not None
        _load_trust(context, "tls.server.trustCertPath", config.tls_server_trust_cert_path)
        context.verify_mode = _VERIFY[client_auth]
    return context


def client_context(config: TlsConfig, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Return the context of connections that this process opens. Blocks.

    Args:
        alpn: protocols behind TLS that are asked for.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not config.tls_client_auth_server:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.tls_client_trust_cert_path is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load_trust(context, "tls.client.trustCertPath", config.tls_client_trust_cert_path)
    if config.tls_client_cert_path is not None:
        _load_chain(
            context,
            "tls.client",
            config.tls_client_cert_path,
            config.tls_client_key_path,
            config.tls_client_key_password,
        )
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


class OutgoingTls:
    """TLS of the connections that this process opens; new ones use what its files have become.

    Attributes:
        client: for the network that opens them.
    """

    def __init__(
        self,
        config: TlsConfig,
        clock: Clock,
        submit: Submit = submit_to_pool,
        *,
        alpn: tuple[str, ...] = (),
        quiet: bool = False,
    ) -> None:
        """Read the files. Blocks; for the start alone.

        Args:
            alpn: protocols behind TLS that are asked for.
            quiet: others of the same configuration tell what becomes of the files.

        Raises:
            ConfigError: a file cannot be used; names its key.
        """
        paths = {
            "tls.client.certPath": config.tls_client_cert_path,
            "tls.client.keyPath": config.tls_client_key_path,
            "tls.client.trustCertPath": config.tls_client_trust_cert_path,
        }
        files = Files(paths, partial(client_context, config, alpn))
        self.contexts = WatchedContext(files, clock, submit, self._changed, quiet=quiet)
        self.contexts.load()
        self.client = ClientTls(self.contexts.current, settings_hint=_CLIENT_HINT)

    def _changed(self, context: ssl.SSLContext) -> None:
        self.client.context = context


def _empty_server_context(alpn: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


def _content(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(key, path, f"it cannot be read: {error.strerror}") from error


def _load_chain(
    context: ssl.SSLContext, prefix: str, certificate: Path, key: Path | None, password: str | None
) -> None:
    key_name = f"{prefix}.keyPath" if key is not None else f"{prefix}.certPath"
    key_path = key or certificate
    try:
        # Always with a password: OpenSSL asks at the terminal otherwise.
        context.load_cert_chain(certificate, key, password=lambda: password or "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            cure = f"it is not the key of the certificate in {certificate}"
        elif b"-----BEGIN CERTIFICATE" not in _content(f"{prefix}.certPath", certificate):
            key_name, key_path = f"{prefix}.certPath", certificate
            cure = "there is no certificate in it; write PEM"
        elif b"ENCRYPTED" in _content(key_name, key_path):
            cure = f"it is encrypted, and {prefix}.keyPassword is not its password"
        elif b"PRIVATE KEY-----" not in _content(key_name, key_path):
            cure = "there is no private key in it; write PEM"
        else:
            cure = f"OpenSSL cannot use it: {error}"
        raise ConfigError(key_name, key_path, cure) from error
    except OSError as error:
        raise ConfigError(key_name, key_path, f"it cannot be read: {error.strerror}") from error


def _load_trust(context: ssl.SSLContext, key: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(key, path, "there is no certificate in it; write PEM") from error
    except OSError as error:
        raise ConfigError(key, path, f"it cannot be read: {error.strerror}") from error


def expiry_s(pem: bytes) -> float:
    """Return the Unix time at which the first certificate of a chain is out of date.

    It is the second time in the fourth field of what is signed (the fifth, where a version stands
    first), all in DER. OpenSSL has read the certificate before, so its layout is sound. 0 for one
    under another heading (OpenSSL's TRUSTED CERTIFICATE).
    Source: RFC 5280, 4.1
    """
    begin, end = pem.find(ssl.PEM_HEADER.encode()), pem.find(ssl.PEM_FOOTER.encode())
    if begin < 0:
        return 0.0
    text = pem[begin : end + len(ssl.PEM_FOOTER)].decode("ascii")
    der = ssl.PEM_cert_to_DER_cert(text)

    def content(place: int) -> tuple[int, int]:
        """Return where the content of the element at a place begins and ends."""
        size, start = der[place + 1], place + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(der[place + 2 : start], "big")
        return start, start + size

    place, _ = content(content(0)[0])
    for _ in range(4 if der[place] == 0xA0 else 3):  # 0xA0: the version
        place = content(place)[1]
    place = content(content(place)[0])[1]
    start, end = content(place)
    text = der[start:end].decode("ascii")
    if der[place] == 0x17:  # UTCTime: two digits of the year
        text = ("19" if text >= "50" else "20") + text
    moment = datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ")
    return moment.replace(tzinfo=datetime.UTC).timestamp()


def _throw_away_context(now_ms: int, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """Return a context with a new key and a certificate that it signs for itself. Blocks.

    Raises:
        ModuleNotFoundError: the extra `tls` is not installed.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, "SkylarkMQ, certificate of a test")]
    )
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=THROW_AWAY_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    context = _empty_server_context(alpn)
    # `ssl` reads files alone: this one is in memory, and the key never on a disk.
    with open(os.memfd_create("skylarkmq-tls"), "wb", buffering=0) as memory:
        memory.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
    return context
