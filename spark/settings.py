"""How Spark's driver and tasks reach name servers and brokers.

Made once from a reader's options, pickled to every task, and the key of the pool of clients there.
Hashable, so all parts are tuples. Nothing that prints it shows a secret. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skylarkmq.client.config import Credentials
from skylarkmq.client.namespace import Namespace
from skylarkmq.spark.option_reading import (
    TRUE_FALSE,
    Option,
    OptionError,
    OptionReader,
    flag,
    number,
    options_of,
    seconds,
    special,
    string,
)

SEPARATORS: Final = ";,"
HINTS: Final = {
    "brokers": "brokers are found by name servers, which option nameServer names; for brokers that "
    "advertise other addresses there is addressMap",
}
"""What to do instead of options that this release does not have."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files are paths on the machine that connects: driver and every executor."""

    ca_file: str | None = string("tls.caFile", None, "PEM file of issuers; else the system's")
    cert_file: str | None = string("tls.certFile", None, "PEM file of this client's certificate")
    key_file: str | None = string("tls.keyFile", None, "PEM file of its key")
    key_password: str | None = string("tls.keyPassword", None, "the password of the key")
    verify: bool = flag("tls.verify", True, "`false` takes any certificate")
    server_name: str | None = string("tls.serverName", None, "the name in brokers' certificates")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Whom to reach and how; immutable, picklable, hashable.

    Raises:
        ValueError: no address at all, or a number out of range.
    """

    name_servers: tuple[str, ...] = special(
        "nameServer", (), "the name servers; needed", "`host:port;host:port`"
    )
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    namespace: str = string("namespace", "", "the prefix of a tenant's topics and groups")
    start_timeout_s: float = seconds(
        "startTimeoutMs",
        30_000,
        "how long a query, a write or a job that starts waits for a cluster that is not there yet",
    )
    request_timeout_s: float = seconds("pullTimeoutMs", 3000, "one request and its answer", low=1)
    retries: int = number(
        "fetchOffset.numRetries", 3, "further tries of a request that may be repeated", high=1000
    )
    retry_interval_s: float = seconds(
        "fetchOffset.retryIntervalMs", 10, "the wait before the first of them; it doubles with each"
    )
    retry_timeout_s: float = seconds(
        "retryTimeoutMs", 60_000, "how long a task goes on without any progress before it fails"
    )
    address_map: tuple[tuple[str, str], ...] = special(
        "addressMap", (), "for brokers that advertise other addresses", "`advertised=dialled;...`"
    )

    def __post_init__(self) -> None:
        if not self.name_servers:
            raise ValueError("no name server is named")
        if self.request_timeout_s <= 0 or self.retries < 0 or self.retry_interval_s < 0:
            raise ValueError("time-outs are above 0, retries 0 or more")
        Namespace(self.namespace)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> ConnectionSettings:
        """Return the settings in a reader's options; those of others are passed over.

        Raises:
            OptionError: a value that its option does not take, or options that contradict.
        """
        options = OptionReader(given, (), others_allowed=True)
        options.refuse(HINTS, f"is unknown: {HINTS['brokers']}")
        options.required("nameServer")
        try:
            Namespace(options.text("namespace"))
        except ValueError as error:
            raise OptionError(f"option namespace: {error}", "namespace") from error
        return cls(
            name_servers=tuple(
                _address("nameServer", each) for each in options.listing("nameServer", SEPARATORS)
            ),
            credentials=_credentials(options),
            tls=_tls(options),
            address_map=_address_map(options),
            **options.values(cls),
        )

    def dialled(self, address: str) -> str:
        """Return the address to dial for an advertised one."""
        return dict(self.address_map).get(address, address)

    @property
    def text(self) -> str:
        """The addresses, for messages to people."""
        return f"name server {';'.join(self.name_servers)}"


CONNECTION_OPTIONS: Final = options_of(
    ConnectionSettings,
    Option("accessKey", "the account at the brokers' access control"),
    Option("secretKey", "its key"),
    Option("securityToken", "its token, where there is one"),
    Option("tls", "whether to use TLS; the following switch it on too", TRUE_FALSE, "false"),
    TlsSettings,
)
"""All options read here; source, sink and jobs take them among their own."""


def _credentials(options: OptionReader) -> Credentials | None:
    names = ("accessKey", "secretKey")
    if not any(options.given(name) for name in (*names, "securityToken")):
        return None
    for name in names:
        options.required(name, "accessKey and secretKey come together")
    return Credentials(
        options.text("accessKey"), options.text("secretKey"), options.text("securityToken") or None
    )


def _tls(options: OptionReader) -> TlsSettings | None:
    parts = [each.name for each in options_of(TlsSettings)]
    asked = any(options.given(name) for name in parts)
    if not options.flag("tls", asked):
        if asked:
            options.refuse(parts, "means TLS, and tls=false switches it off")
        return None
    if options.given("tls.keyFile") or options.given("tls.keyPassword"):
        options.required("tls.certFile", "the key belongs to a certificate")
    return TlsSettings(**options.values(TlsSettings))


def _address_map(options: OptionReader) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for pair in options.listing("addressMap", SEPARATORS):
        advertised, equals, dialled = pair.partition("=")
        if not equals:
            raise options.wrong("addressMap", "pairs such as 10.0.0.5:10911=broker-a:10911")
        pairs.append((advertised.strip(), _address("addressMap", dialled.strip())))
    return tuple(pairs)


def _address(option: str, given: str) -> str:
    host, _, port = given.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise OptionError(f"option {option}: {given[:80]!r} is no host:port", option)
    return given
