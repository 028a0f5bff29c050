"""Whether a call of the gRPC service may be handled: the accounts and lists of access control.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>[/...], SignedHeaders=x-mq-date-time,
                   Signature=<hex digits>

The signature is HMAC-SHA1(secret key, text of x-mq-date-time). So it covers neither the request nor
what is in it, and whoever has read a call may use its account from then on: TLS is what protects
it. How old the date is cannot be told, because clients write their local time with a Z behind it.

Source: apache/rocketmq@rocketmq-all-5.3.3 auth/.../authentication/builder/
DefaultAuthenticationContextBuilder.java; apache/rocketmq-clients java/.../rpc/Signature.java
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hmac import compare_digest, digest
from typing import Final

from skylarkmq.broker.access.accounts import DENY_ALL, AccessRules, Account
from skylarkmq.broker.access.control import (
    AccessDenied,
    Origins,
    account_of,
    bad_signature,
    ensure_account,
    ensure_origins,
    no_origins,
    note_refusal,
)
from skylarkmq.broker.access.forwarded import client_of, is_proved
from skylarkmq.broker.access.rpc_rights import RpcRow
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown

log = logging.getLogger(__name__)

ALGORITHM: Final = "MQv2-HMAC-SHA1"
AUTHORIZATION_MAX: Final = 1024
HOSTS_MAX: Final = 1024
"""Addresses whose answer of the white list is kept."""


class RpcAccess:
    """Checks the calls of one endpoint. Loop thread.

    Attributes:
        rules: what counts now; whoever reads the files puts others in their place.
    """

    def __init__(
        self,
        rows: Mapping[str, RpcRow],
        stats: BrokerStats,
        topics_of_retries: Origins = no_origins,
    ) -> None:
        """Begin with rules that let nobody in.

        Args:
            rows: what each call needs.
            topics_of_retries: the topics whose messages a topic of pop's retries has.
        """
        self._topics_of_retries = topics_of_retries
        self.rules: AccessRules = DENY_ALL
        self._rows = rows
        self._stats = stats
        self._white: dict[str, bool] = {}
        self._white_rules = self.rules

    def client(self, metadata: Mapping[str, str], peer: str) -> str:
        """Return the address of the client of a call that another endpoint forwards.

        Empty where it is not proved.

        Args:
            peer: `host:port` of the connection.
        """
        client = client_of(metadata)
        if client and is_proved(self.rules, client, metadata):
            return client
        log.info(
            "%s forwards a call of %s without a proof that counts here, so no white list "
            "lets it in: give both brokers the same admin's account",
            peer,
            client or "no address",
        )
        return ""

    def account(
        self, name: str, metadata: Mapping[str, str], peer: str, *, may_be_white: bool = True
    ) -> Account | None:
        """Return whose call it is; None for an address that may do everything.

        Args:
            name: of the call.
            peer: `host:port` of the client.
            may_be_white: white lists count.

        Raises:
            AccessDenied: it is nobody's.
        """
        host = peer.rpartition(":")[0] if may_be_white else ""
        if host and self._is_open(host):
            return None
        try:
            return self._proved(metadata, host)
        except AccessDenied as error:
            note_refusal(self._stats, peer, name, error)
            raise

    def check(self, account: Account | None, name: str, peer: str, request: object) -> None:
        """Let a request, or a command of a stream, pass.

        Raises:
            AccessDenied: its account lacks a right.
            RemoteProtocolError: the call has no row.
        """
        if account is None:
            return
        row = self._rows.get(name)
        if row is None:
            raise RemoteProtocolError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"{name} is not for accounts"
            )
        try:
            needs = row.read(request)
            if row.one_is_enough and any(account.allows(*need) for need in needs):
                return
            for kind, resource, right in needs:
                ensure_account(account, kind, resource, right)
            for topic in row.topics(request):
                ensure_origins(account, topic, self._topics_of_retries)
        except AccessDenied as error:
            note_refusal(self._stats, peer, name, error)
            raise

    def _is_open(self, host: str) -> bool:
        if self._white_rules is not self.rules or len(self._white) >= HOSTS_MAX:
            self._white_rules = self.rules
            self._white.clear()
        is_open = self._white.get(host)
        if is_open is None:
            is_open = self._white[host] = self.rules.white.matches(host)
        return is_open

    def _proved(self, metadata: Mapping[str, str], host: str) -> Account:
        key, signature = read_authorization(metadata.get("authorization", ""))
        account = account_of(self.rules, key)
        if host and account.white and account.white.matches(host):
            return account
        date = metadata.get("x-mq-date-time", "")
        right = digest(account.secret_key, date.encode(), "sha1").hex()
        if not date or not compare_digest(right.encode(), signature.lower().encode()):
            raise bad_signature(account)
        return account


def read_authorization(text: str) -> tuple[str, str]:
    """Return the access key and the signature of an `authorization`; what lacks is empty.

    Raises:
        AccessDenied: it is of another kind.
    """
    if not text:
        return "", ""
    algorithm, _, rest = text[:AUTHORIZATION_MAX].partition(" ")
    if algorithm != ALGORITHM:
        raise AccessDenied(
            "bad_signature",
            f"Authorization of kind {shown(algorithm)}",
            f"clients of RocketMQ 5 send {ALGORITHM}",
        )
    parts: dict[str, str] = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        parts[name] = value
    return parts.get("Credential", "").partition("/")[0], parts.get("Signature", "")
