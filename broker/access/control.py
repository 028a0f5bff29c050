"""Whether a request may be handled, as RocketMQ 4.9 decides it; beside it, what is answered if not.

    the peer's address is in a global white list      yes, whatever it asks for
    the request names an access key                   No accessKey is configured
    an account has it                                 No acl config for <key>
    the address is in the account's white list, or
      the signature is right                          Check signature failed for accessKey=<key>
    the account may send such a code                  Need admin permission for request code=<code>
    the account has the rights of the code's row      No default permission for topic:<name>

What is refused is answered with SYSTEM_ERROR and RocketMQ's text, a one-way request with nothing;
both are counted. After the comma, where RocketMQ has a place in its source, stands what to do.

Sends to the topic of message traces, and replies, are allowed to every account, as in RocketMQ.

Unlike RocketMQ, where an account's white list waives its rights, too: here the signature alone. A
signature counts with or without the field `_UNIQUE_KEY_QUERY`, as clients differ in it.

Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../plain/PlainPermissionManager.java (validate,
checkPerm), remoting/.../netty/NettyRemotingAbstract.java (processRequestCommand)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.access.accounts import (
    DENY_ALL,
    PUB,
    SUB,
    AccessRules,
    Account,
    Kind,
    need_of,
    right_names,
)
from skylarkmq.broker.access.revoking import BY_ADDRESS
from skylarkmq.broker.access.rights import Level, Row
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.memberships import Member
from skylarkmq.broker.net.connection import Connection
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import RMQ_SYS_TRACE_TOPIC, is_retry_topic
from skylarkmq.protocol.headers.access import ACCESS_KEY, SIGNATURE

if TYPE_CHECKING:
    import skylarkmq.protocol.signature as signatures
else:  # where there is access control
    signatures = on_first_use("skylarkmq.protocol.signature")

log = logging.getLogger(__name__)

ACL_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException"
NAME_MAX: Final = 256
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_.@-]+", re.ASCII)
_OF_MESSAGES: Final[Mapping[int, str]] = {
    RequestCode.PULL_MESSAGE: "topic",
    RequestCode.LITE_PULL_MESSAGE: "topic",
    RequestCode.POP_MESSAGE: "topic",
    RequestCode.PEEK_MESSAGE: "topic",
    RequestCode.QUERY_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
}
"""What gives out or takes messages of the topic that it names; the field that names it."""
_REPLIES: Final = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
_ASK: Final = "ask who administers the broker"
_RIGHTS_MISSING: Final = frozenset({"no_permission", "not_admin", "not_reader"})


Origins = Callable[[str], Iterable[str]]
"""Returns the topics whose messages wait for another try in a topic of retries."""


def no_origins(_: str) -> Iterable[str]:
    """Return none: nobody pops."""
    return ()


class AccessDenied(RemoteProtocolError):
    """A request that its sender may not make.

    Attributes:
        reason: one of `stats.AUTH_FAILURES`.
    """

    def __init__(self, reason: str, text: str, cure: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{ACL_EXCEPTION}: {text}, {cure}")
        self.reason = reason

    @property
    def is_known(self) -> bool:
        """Whether its sender has proved who it is, and lacks a right alone."""
        return self.reason in _RIGHTS_MISSING


class AccessControl:
    """Checks the requests of one server. Loop thread.

    Attributes:
        rules: what counts now; whoever reads the files puts others in their place.
    """

    def __init__(
        self,
        rows: Mapping[int, Row],
        stats: BrokerStats,
        *,
        reply_topic: str = "",
        topics_of_retries: Origins = no_origins,
    ) -> None:
        """Begin with rules that let nobody in.

        Args:
            rows: what each code needs.
            reply_topic: to which every account may reply.
            topics_of_retries: the topics whose messages a topic of pop's retries has.
        """
        self.rules: AccessRules = DENY_ALL
        self._is_signed = signatures.is_signed
        self._rows = rows
        self._stats = stats
        self._reply_topic = reply_topic
        self._topics_of_retries = topics_of_retries

    def is_open(self, connection: Connection) -> bool:
        """Return whether a peer may do everything, by its address."""
        rules, is_open = connection.admitted
        if rules is not self.rules:
            rules = self.rules
            is_open = rules.white.matches(_host(connection))
            connection.admitted = rules, is_open
            if is_open:
                connection.access_keys |= {BY_ADDRESS}
        return is_open

    def check(self, connection: Connection, request: RemotingCommand) -> None:
        """Let a request pass, and note in it whose it is.

        Raises:
            AccessDenied: it may not be handled.
            RemoteProtocolError: the code has no row, or the body cannot be read.
        """
        if self.is_open(connection):
            return
        try:
            account = self._account(connection, request)
            request.sender = account
            self._check_rights(account, request)
            if account.access_key not in connection.access_keys:
                connection.access_keys |= {account.access_key}
            if request.code == RequestCode.HEART_BEAT:
                connection.account = account
        except AccessDenied as error:
            note_refusal(self._stats, connection.remote_address, f"code {request.code}", error)
            raise

    def _account(self, connection: Connection, request: RemotingCommand) -> Account:
        """Return whose request it is, proved by address or signature."""
        fields = request.ext_fields
        access_key = fields.get(ACCESS_KEY)
        account = account_of(self.rules, access_key)
        if account.white and account.white.matches(_host(connection)):
            return account
        if not self._is_signed(account.secret_key, fields, request.body, fields.get(SIGNATURE, "")):
            raise bad_signature(account)
        return account

    def _check_rights(self, account: Account, request: RemotingCommand) -> None:
        row = self._rows.get(request.code)
        if row is None:
            raise RemoteProtocolError(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
            )
        if row.level is Level.ADMIN and not account.is_admin:
            raise AccessDenied(
                "not_admin",
                f"Need admin permission for request code={request.code}, but "
                f"accessKey={_named(account.access_key)} is not",
                f"use an account with `admin: true`, or {_ASK}",
            )
        if row.level is Level.READER and not account.reads_all:
            raise AccessDenied(
                "not_reader",
                f"Need permission to read everything for request code={request.code}, but "
                f"accessKey={_named(account.access_key)} has not",
                "use an account with SUB in defaultTopicPerm and defaultGroupPerm, or an admin",
            )
        for resource in row.resources:
            for kind, name, right in resource.read(request):
                if not self._is_free(request, kind, name, right):
                    ensure_account(account, kind, name, right)
        field = _OF_MESSAGES.get(request.code)
        if field is not None:
            topic = request.ext_fields.get(field) or ""
            ensure_origins(account, topic, self._topics_of_retries)

    def _is_free(self, request: RemotingCommand, kind: Kind, name: str, right: int) -> bool:
        """Return whether every account has a right: to send traces, and to reply."""
        if kind is not Kind.TOPIC or right != PUB:
            return False
        return name == RMQ_SYS_TRACE_TOPIC or (
            name == self._reply_topic and request.code in _REPLIES
        )


def note_refusal(stats: BrokerStats, peer: str, what: str, error: AccessDenied) -> None:
    """Count and log what a peer may not do."""
    stats.auth_failures[error.reason] += 1
    stats.rejected("other", "acl")
    log.info("%s, %s, is refused: %s", peer, what, error.remark)


def account_of(rules: AccessRules, access_key: str | None) -> Account:
    """Return the account that a request names, not proved yet.

    Raises:
        AccessDenied: it names none, or one that there is not.
    """
    if not access_key:  # C++ clients without one send an empty one
        raise AccessDenied(
            "no_access_key",
            "No accessKey is configured",
            "give the client an access key and its secret",
        )
    account = rules.accounts.get(access_key)
    if account is None:
        raise AccessDenied(
            "unknown_account",
            f"No acl config for {_named(access_key)}",
            "no account of this server has the access key",
        )
    return account


def bad_signature(account: Account) -> AccessDenied:
    """Return the error for a request that is not signed with the account's secret."""
    return AccessDenied(
        "bad_signature",
        f"Check signature failed for accessKey={_named(account.access_key)}",
        "the client has another secret than the server",
    )


def may_publish(connection: Member, topic: str) -> bool:
    """Return whether a client, which a heartbeat named, may be asked about messages of a topic."""
    account = connection.account
    return not isinstance(account, Account) or account.allows(*need_of(Kind.TOPIC, topic, PUB))


def ensure(request: RemotingCommand, kind: Kind, name: str, right: int) -> None:
    """Refuse a request that names by a number what its sender has no right to.

    Raises:
        AccessDenied: the sender has an account that lacks the right.
    """
    if isinstance(request.sender, Account):
        ensure_account(request.sender, *need_of(kind, name, right))


def ensure_account(account: Account, kind: Kind, name: str, right: int) -> None:
    """Refuse what an account has no right to.

    Raises:
        AccessDenied: it lacks the right.
    """
    if not account.allows(kind, name, right):
        raise AccessDenied(
            "no_permission",
            f"No default permission for {kind}:{_named(name)}",
            f"account {_named(account.access_key)} lacks {right_names(right)}; {_ASK}",
        )


def ensure_origins(account: Account, topic: str, origins: Origins) -> None:
    """Refuse a topic of retries to who lacks the right to a topic of what is in it.

    It may be another group's as well: `broker/pop/delivering.py` says how. One with a `+` names it.

    Raises:
        AccessDenied: the account lacks it.
    """
    if is_retry_topic(topic):
        _, plus, named = topic.partition("+")
        for origin in (named,) if plus else origins(topic):
            ensure_account(account, Kind.TOPIC, origin, SUB)


def _named(text: str) -> str:
    """Return a name as RocketMQ's texts have it, one that is no name as `shown` tells it."""
    return text if len(text) < NAME_MAX and _NAME.fullmatch(text) else shown(text)


def _host(connection: Connection) -> str:
    return connection.remote_address.rpartition(":")[0]
