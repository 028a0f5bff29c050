"""How Spark's driver and tasks reach name servers and brokers.

Made once from a reader's options, pickled to every task, and the key of the pool of clients there.
Hashable, so all parts are tuples. Nothing that prints it shows a secret. Imports no pyspark.

    nameServer                   host:port;host:port           one of these two
    brokers                      [name=]host:port;...          brokers alone, without name servers
    accessKey, secretKey, securityToken                        of the brokers' access control
    tls                          true: TLS; also switched on by each of the following
    tls.caFile                   PEM file of issuers to trust; else the system's
    tls.certFile, tls.keyFile, tls.keyPassword                 this client's certificate
    tls.verify                   false: takes any certificate
    tls.serverName               the name that certificates of brokers have
    addressMap                   advertised=dialled;...        for brokers behind NAT
    namespace                    the tenant's prefix of topics and groups
    pullTimeoutMs                one request, 3000
    fetchOffset.numRetries, fetchOffset.retryIntervalMs        3, 10: further tries of a request
    retryTimeoutMs               60000: how long a task outlasts a broker that is away
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.config import Credentials
from skylarkmq.client.namespace import Namespace
from skylarkmq.spark.option_reading import OptionError, OptionReader

SEPARATORS: Final = ";,"
CONNECTION_OPTIONS: Final = (
    "nameServer",
    "brokers",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "tls.caFile",
    "tls.certFile",
    "tls.keyFile",
    "tls.keyPassword",
    "tls.verify",
    "tls.serverName",
    "addressMap",
    "namespace",
    "pullTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "retryTimeoutMs",
)
"""All options read here; source, sink and jobs take them among their own."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files are paths on the machine that connects: driver and every executor."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Whom to reach and how; immutable, picklable, hashable.

    Raises:
        ValueError: no address at all, both kinds of addresses, or a number out of range.
    """

    name_servers: tuple[str, ...] = ()
    brokers: tuple[tuple[str, str], ...] = ()
    """(broker name, host:port) when no name server is asked; an empty name: the broker says it."""
    credentials: Credentials | None = None
    tls: TlsSettings | None = None
    namespace: str = ""
    request_timeout_s: float = 3.0
    """One request from its write to its answer."""
    retries: int = 3
    """Further tries of one request that is safe to repeat."""
    retry_interval_s: float = 0.01
    """Before the first of them; doubles with each."""
    retry_timeout_s: float = 60.0
    """How long a range or a send goes on without any progress before it fails."""
    address_map: tuple[tuple[str, str], ...] = ()
    """(advertised, dialled) addresses."""

    def __post_init__(self) -> None:
        if bool(self.name_servers) == bool(self.brokers):
            raise ValueError("either name servers or brokers are named, one of the two")
        if self.request_timeout_s <= 0 or self.retries < 0 or self.retry_interval_s < 0:
            raise ValueError("time-outs are above 0, retries 0 or more")
        Namespace(self.namespace)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> ConnectionSettings:
        """Return the settings in a reader's options; those of others are passed over.

        Raises:
            OptionError: a value that its option does not take, or options that contradict.
        """
        options = OptionReader(given, CONNECTION_OPTIONS, others_allowed=True)
        options.exactly_one("nameServer", "brokers")
        try:
            Namespace(options.text("namespace"))
        except ValueError as error:
            raise OptionError(f"option namespace: {error}", "namespace") from error
        return cls(
            name_servers=tuple(
                _address("nameServer", text) for text in options.listing("nameServer", SEPARATORS)
            ),
            brokers=tuple(_broker(text) for text in options.listing("brokers", SEPARATORS)),
            credentials=_credentials(options),
            tls=_tls(options),
            namespace=options.text("namespace"),
            request_timeout_s=options.milliseconds("pullTimeoutMs", 3000, low=1) / 1000,
            retries=options.number("fetchOffset.numRetries", 3, high=1000),
            retry_interval_s=options.milliseconds("fetchOffset.retryIntervalMs", 10) / 1000,
            retry_timeout_s=options.milliseconds("retryTimeoutMs", 60_000) / 1000,
            address_map=_address_map(options),
        )

    def dialled(self, address: str) -> str:
        """Return the address to dial for an advertised one."""
        return dict(self.address_map).get(address, address)

    @property
    def text(self) -> str:
        """The addresses, for messages to people."""
        if self.name_servers:
            return f"name server {';'.join(self.name_servers)}"
        return f"brokers {';'.join(address for _, address in self.brokers)}"


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
    parts = [name for name in CONNECTION_OPTIONS if name.startswith("tls.")]
    asked = any(options.given(name) for name in parts)
    if not options.flag("tls", asked):
        if asked:
            options.refuse(parts, "means TLS, and tls=false switches it off")
        return None
    if options.given("tls.keyFile") or options.given("tls.keyPassword"):
        options.required("tls.certFile", "the key belongs to a certificate")
    return TlsSettings(
        ca_file=options.text("tls.caFile") or None,
        cert_file=options.text("tls.certFile") or None,
        key_file=options.text("tls.keyFile") or None,
        key_password=options.text("tls.keyPassword") or None,
        verify=options.flag("tls.verify", True),
        server_name=options.text("tls.serverName") or None,
    )


def _address_map(options: OptionReader) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for text in options.listing("addressMap", SEPARATORS):
        advertised, equals, dialled = text.partition("=")
        if not equals:
            raise options.wrong("addressMap", "pairs such as 10.0.0.5:10911=broker-a:10911")
        pairs.append((advertised.strip(), _address("addressMap", dialled.strip())))
    return tuple(pairs)


def _broker(text: str) -> tuple[str, str]:
    name, equals, address = text.rpartition("=")
    return (name.strip() if equals else ""), _address("brokers", address.strip())


def _address(option: str, text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise OptionError(f"option {option}: {text[:80]!r} is no host:port", option)
    return text
