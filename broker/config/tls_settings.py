"""Configuration of TLS: RocketMQ's system properties as keys, dots included.

A broker, its built-in name server and its metrics page share them. The keys of `tls.client` are
for the connections that a broker opens, to its name servers.

Unlike RocketMQ, whose test mode leaves out certificates that are configured, and whose client
certificates are checked only with `tls.server.authClient=true`: a certificate that is configured is
used, one that is asked for is checked, and settings that contradict each other are refused.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../netty/TlsSystemConfig.java, TlsHelper.java,
broker/.../BrokerStartup.java (tls.enable)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skylarkmq.common.config_fields import ConfigError, Unused, check_values

TlsMode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """Values of the keys of TLS, checked."""

    # Connections that come in
    tls_server_mode: TlsMode = "permissive"  # permissive: TLS and plain text; enforcing: TLS alone
    tls_server_cert_path: Path | None = None  # PEM; the certificate, then those of its issuers
    tls_server_key_path: Path | None = None  # PEM; None: in the file of the certificate
    tls_server_key_password: str | None = None  # of an encrypted key
    tls_test_mode_enable: bool = True  # without certPath: a certificate made for this run alone
    tls_server_need_client_auth: ClientAuth = "none"  # certificates of clients, always checked
    tls_server_trust_cert_path: Path | None = None  # PEM; who may sign certificates of clients
    tls_server_auth_client: Unused[bool] = False

    # Connections that go out, to name servers
    tls_enable: bool | None = None  # None: when tls_server_mode is enforcing
    tls_client_auth_server: bool = True  # check issuer and name of the server's certificate
    tls_client_trust_cert_path: Path | None = None  # PEM; None: the issuers the system trusts
    tls_client_cert_path: Path | None = None  # PEM; this broker's certificate as a client
    tls_client_key_path: Path | None = None  # PEM; None: in the file of the certificate
    tls_client_key_password: str | None = None  # of an encrypted key

    # Where these keys may stand, too
    tls_config_file: Path | None = None  # the loader's default is /etc/rocketmq/tls.properties

    def __post_init__(self) -> None:
        """Check all values.

        Raises:
            ConfigError: a value is none of its words, or two contradict each other.
        """
        check_values(self)
        if self.tls_server_key_path is not None and self.tls_server_cert_path is None:
            raise ConfigError(
                "tls.server.keyPath",
                self.tls_server_key_path,
                "name the certificate of this key in tls.server.certPath",
            )
        if self.tls_client_key_path is not None and self.tls_client_cert_path is None:
            raise ConfigError(
                "tls.client.keyPath",
                self.tls_client_key_path,
                "name the certificate of this key in tls.client.certPath",
            )
        if self.tls_server_mode == "disabled":
            return
        if self.tls_server_need_client_auth != "none" and self.tls_server_trust_cert_path is None:
            raise ConfigError(
                "tls.server.need.client.auth",
                self.tls_server_need_client_auth,
                "name who signs the clients' certificates in tls.server.trustCertPath",
            )
        if self.tls_server_mode == "enforcing" and not self.has_server_certificate:
            raise ConfigError(
                "tls.server.mode",
                self.tls_server_mode,
                "name the certificate in tls.server.certPath (tls.test.mode.enable is false)",
            )

    @property
    def has_server_certificate(self) -> bool:
        """There is a certificate to answer clients with, or one will be made."""
        return self.tls_server_cert_path is not None or self.tls_test_mode_enable

    @property
    def uses_client_tls(self) -> bool:
        """Connections that this process opens are to use TLS."""
        if self.tls_enable is None:
            return self.tls_server_mode == "enforcing"
        return self.tls_enable

    @property
    def admits_known_clients_alone(self) -> bool:
        """Nobody is served who has no certificate of a trusted issuer."""
        return self.tls_server_mode == "enforcing" and self.tls_server_need_client_auth == "require"
