"""TLS to name servers and brokers: whom to trust, which name to expect, what went wrong.

A certificate is verified and its name compared with the host that is dialled, unless the
application hands in a context that says otherwise. Brokers advertise addresses, often plain IP
addresses, for which certificates seldom stand. Three ways, in order of preference:

    certificate names the IP       subjectAltName = IP:10.0.0.5; nothing to do here
    address_map={"10.0.0.5:10911": "broker-a.example:10911"}
                                   dials, and expects, the host name
    server_hostname="broker-a.example"
                                   dials the IP and expects that name in the certificate; a mapping
                                   or a function gives each address its own

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../netty/TlsHelper.java
Unlike RocketMQ: verification is on; its Java client verifies only with tls.client.authServer=true.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Final

SslSetting = ssl.SSLContext | bool | None
ServerHostname = str | Mapping[str, str] | Callable[[str], str | None] | None

HOSTNAME_MISMATCH: Final = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""
OUT_OF_TIME: Final = frozenset({9, 10})
UNKNOWN_ISSUER: Final = frozenset({18, 19, 20, 21})

_NAME_HINT: Final = (
    "Put this name or address into the certificate, or say with server_hostname= which name the "
    "certificate has, or dial the right name by address_map="
)
_ISSUER_HINT: Final = (
    "Hand in a context that trusts its issuer: ssl=ssl.create_default_context(cafile='ca.pem')"
)
_TIME_HINT: Final = "Renew the certificate, or set the clock of this host or of that one"
_PLAIN_HINT: Final = (
    "Does the server speak TLS there, 1.2 or up? A RocketMQ broker does with "
    "tls.server.mode=permissive or enforcing; without ssl= the client speaks plain text"
)
_CLIENT_CERTIFICATE_HINT: Final = (
    "The server wants a client certificate that it trusts: context.load_cert_chain(...)"
)
_VERSION_HINT: Final = "The two sides share no TLS version or cipher; this side wants TLS 1.2 or up"


class TlsFailure(OSError):
    """A handshake that failed: which check, and what to do about it."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


class ClientTls:
    """The TLS side of one client's connections."""

    def __init__(
        self,
        setting: SslSetting,
        server_hostname: ServerHostname = None,
        *,
        settings_hint: str = "",
    ) -> None:
        """Take `True` for the system's trusted issuers, or a context of the application.

        Args:
            settings_hint: what these settings are called where the user gives them; errors say it.

        Raises:
            ValueError: a context for servers, or a name to expect without TLS.
        """
        self.context = _context(setting)
        if server_hostname is not None and self.context is None:
            raise ValueError("server_hostname says which certificate to expect: it needs ssl=")
        self._server_hostname = server_hostname
        self._settings_hint = settings_hint

    def expected_name(self, address: str, host: str) -> str:
        """Return the name that the certificate of `address` (host:port) is to have.

        Raises:
            TlsFailure: the application's function failed.
        """
        rule = self._server_hostname
        if rule is None or isinstance(rule, str):
            return rule or host
        if callable(rule):
            try:
                return rule(address) or host
            except Exception as error:
                why = f"server_hostname failed: {error!r}"
                raise TlsFailure(why, "It is a function of the application") from error
        return rule.get(address) or rule.get(host) or host

    def explain(self, error: Exception, expected_name: str) -> TlsFailure:
        """Return what a failed handshake means."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return self._named(_explain_certificate(error, expected_name))
        if isinstance(error, ssl.SSLError):
            return self._named(_explain_alert(error))
        text = str(error) or type(error).__name__
        return self._named(TlsFailure(f"the peer ended the TLS handshake: {text}", _PLAIN_HINT))

    def explain_loss(self, error: Exception | None) -> Exception | None:
        """Return why a connection ended, in words when the peer sent a TLS alert."""
        return self._named(_explain_alert(error)) if isinstance(error, ssl.SSLError) else error

    def _named(self, failure: TlsFailure) -> TlsFailure:
        if self._settings_hint:
            failure.hint = f"{failure.hint}. {self._settings_hint}"
        return failure


def _explain_certificate(error: ssl.SSLCertVerificationError, expected_name: str) -> TlsFailure:
    code, message = error.verify_code, error.verify_message
    if code in HOSTNAME_MISMATCH:
        why = f"its certificate is not for {expected_name!a} (host name check): {message}"
        return TlsFailure(why, _NAME_HINT)
    if code in UNKNOWN_ISSUER:
        why = f"its certificate has no issuer that this side trusts (issuer check): {message}"
        return TlsFailure(why, _ISSUER_HINT)
    if code in OUT_OF_TIME:
        return TlsFailure(f"its certificate is out of date (validity check): {message}", _TIME_HINT)
    return TlsFailure(f"its certificate was refused: {message} (code {code})", _ISSUER_HINT)


def _explain_alert(error: ssl.SSLError) -> TlsFailure:
    reason = error.reason or str(error)
    if "ALERT" in reason:
        certificate = any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA"))
        hint = _CLIENT_CERTIFICATE_HINT if certificate else _VERSION_HINT
        return TlsFailure(f"the peer refused TLS with this side ({reason})", hint)
    if any(word in reason for word in ("UNSUPPORTED_PROTOCOL", "NO_PROTOCOLS", "NO_SHARED")):
        return TlsFailure(f"no TLS with the peer ({reason})", _VERSION_HINT)
    return TlsFailure(f"what the peer sent is no TLS ({reason})", _PLAIN_HINT)


def _context(setting: SslSetting) -> ssl.SSLContext | None:
    if setting is None or setting is False:
        return None
    if setting is True:
        context = ssl.create_default_context()
        # What a system's own configuration allows may be older.
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
        return context
    if not isinstance(setting, ssl.SSLContext):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"ssl is True, or a context such as ssl.create_default_context(cafile='ca.pem'), "
            f"not {setting!r}"
        )
    if setting.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise ValueError(
            "ssl is a context for servers; make it with ssl.create_default_context(), which "
            "verifies the peer"
        )
    return setting
