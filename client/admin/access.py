"""Accounts and white lists of access control, as RocketMQ 4.9 keeps them; each broker has its own.

A broker takes a change into its files, and answers what cannot be done with a code of its own (209,
210, 211). Its name server has other files where it runs alone. A secret goes over the wire once, in
`put_account`, readable on the way unless there is TLS; no result has one.

What differs between brokers:

    call               SkylarkMQ                   RocketMQ 4.9.8
    put_account        `admin=None` keeps it       takes the rank away, as `mqadmin` does
                       without a secret: kept      refused: wants the secret each time
    access_rules       answered                    refused with code 3; answered up to 4.9.7
    any change         counts when it is answered  counts when it has read its file again

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/acl/, broker/.../processor/
AdminBrokerProcessor.java (updateAndCreateAccessConfig, deleteAccessConfig,
updateGlobalWhiteAddrsConfig, getBrokerAclConfigVersion)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

import msgspec

from skylarkmq.client.admin.base import AdminBase, each, from_ms
from skylarkmq.client.admin.results import Result
from skylarkmq.client.errors import ProtocolError
from skylarkmq.protocol.bodies.access import (
    GetBrokerClusterAclConfigResponseBody,
    PlainAccessConfig,
)
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.headers.access import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)
from skylarkmq.protocol.headers.fields import Header

Right = Literal["DENY", "PUB", "SUB", "PUB|SUB"]
"""What an account may do with a topic, or a consumer group: publish, subscribe, both, nothing."""
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
_READ: Final[Mapping[str, Right]] = {**{right: right for right in RIGHTS}, "SUB|PUB": "PUB|SUB"}


@dataclass(frozen=True, slots=True)
class AccessFile(Result):
    """A file with accounts, on the broker: how often administrators changed it, and when last."""

    path: str
    change_count: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class AccountSummary(Result):
    """An account without its secret; what a list does not name has the default right."""

    access_key: str
    admin: bool
    default_topic_right: Right
    default_group_right: Right
    topic_rights: Mapping[str, Right] = field(hash=False)
    group_rights: Mapping[str, Right] = field(hash=False)
    white_address: str
    """From there it needs no signature."""


@dataclass(frozen=True, slots=True)
class AccessRules(Result):
    """Who may do what on a broker; those of the white list everything."""

    broker: str
    white_list: tuple[str, ...]
    accounts: tuple[AccountSummary, ...]


class AccessAdmin(AdminBase):
    """The part of Admin for access control."""

    async def put_account(
        self,
        access_key: str,
        secret_key: str | None = None,
        *,
        admin: bool | None = None,
        default_topic_right: Right | None = None,
        default_group_right: Right | None = None,
        topic_rights: Mapping[str, Right] | None = None,
        group_rights: Mapping[str, Right] | None = None,
        white_address: str | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Make an account, or change what is given of one; the rest stays as it is.

        Args:
            access_key: 7 characters or more, as the secret (RocketMQ: more than 6).
            secret_key: needed for a new account, by RocketMQ's brokers each time.
            admin: may administer. RocketMQ's brokers take None for False.
            default_topic_right: the right to topics that `topic_rights` does not name.
            default_group_right: the same for consumer groups.
            topic_rights: the whole list by topic, in the place of the old one.
            group_rights: the whole list by consumer group; SUB lets its members receive.
            white_address: from there the account needs no signature; "" for nowhere.
            cluster, brokers: where; see `create_topic`.

        Raises:
            BrokerError: 209, the broker does not take it, for instance as no admin would be left.
            ValueError: a right that is none, a name that cannot be one, or an empty list, which the
                protocol cannot tell from none: give one name the right DENY.
        """
        header = CreateAccessConfigRequestHeader(
            access_key=access_key,
            secret_key=secret_key,
            admin=admin,
            default_topic_perm=_checked(default_topic_right),
            default_group_perm=_checked(default_group_right),
            topic_perms=_list("topic_rights", topic_rights, self._topic),
            group_perms=_list("group_rights", group_rights, self._group),
            white_remote_address=white_address,
        )
        await self._change(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, header, cluster, brokers)

    async def delete_account(
        self,
        access_key: str,
        *,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Delete an account; its clients are refused from now on.

        Args:
            cluster, brokers: where; see `create_topic`.

        Raises:
            BrokerError: 210, there is none, or no admin would be left.
        """
        header = DeleteAccessConfigRequestHeader(access_key=access_key)
        await self._change(RequestCode.DELETE_ACL_CONFIG, header, cluster, brokers)

    async def set_white_list(
        self,
        addresses: Iterable[str],
        *,
        file: str | None = None,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Replace the addresses from which everything is allowed without an account.

        Args:
            addresses: such as `10.0.0.7`, `192.168.1.*`, `10.0.0.{1,2}`; none: nobody, which
                RocketMQ's brokers do not take.
            file: its path on the broker, where there are several (`access_files`); each has a list
                of its own, and all count. Default: `conf/plain_acl.yml`.
            cluster, brokers: where; see `create_topic`.

        Raises:
            BrokerError: 211, an address that is none, or no such file.
        """
        header = UpdateGlobalWhiteAddrsConfigRequestHeader(
            global_white_addrs=",".join(addresses), acl_file_full_path=file
        )
        await self._change(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header, cluster, brokers)

    async def access_files(self, broker: str) -> tuple[AccessFile, ...]:
        """Return a broker's files of access control, and how often administrators changed them.

        Raises:
            BrokerError: it has no access control.
            NotFound: no broker of that name is registered.
        """
        (address,) = (await self._masters(brokers=[broker])).values()
        code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
        answer = await self._api.fields(GetBrokerAclConfigResponseHeader, address, code)
        try:
            versions = msgspec.json.decode(answer.all_acl_file_version, type=dict[str, DataVersion])
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ProtocolError(f"{address} sent versions that cannot be read: {error}") from error
        return tuple(
            AccessFile(
                path, version.counter, from_ms(version.timestamp) if version.counter else None
            )
            for path, version in sorted(versions.items())
        )

    async def access_rules(self, broker: str) -> AccessRules:
        """Return a broker's white list and its accounts, without their secrets.

        Names are as the client's namespace has them; those outside it are whole.

        Raises:
            NotSupported: it does not answer that, as RocketMQ 4.9.8.
            BrokerError: it has no access control.
            NotFound: no broker of that name is registered.
        """
        (address,) = (await self._masters(brokers=[broker])).values()
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
        body = await self._api.body(GetBrokerClusterAclConfigResponseBody, address, code)
        accounts = sorted(body.plain_access_configs, key=lambda account: account.access_key)
        return AccessRules(
            broker, tuple(body.global_white_addrs), tuple(map(self._account, accounts))
        )

    def _account(self, config: PlainAccessConfig) -> AccountSummary:
        return AccountSummary(
            config.access_key,
            config.admin,
            _right(config.default_topic_perm),
            _right(config.default_group_perm),
            self._rights(config.topic_perms),
            self._rights(config.group_perms),
            config.white_remote_address or "",
        )

    def _rights(self, texts: Iterable[str]) -> dict[str, Right]:
        parts = (text.partition("=") for text in texts)
        return {self._namespace.unwrap(name.strip()): _right(right) for name, _, right in parts}

    async def _change(
        self,
        code: RequestCode,
        header: Header,
        cluster: str | None,
        brokers: Sequence[str] | None,
    ) -> None:
        targets = await self._targets(cluster, brokers)
        await each(lambda address: self._api.call(address, code, header), targets.values())


def _right(text: str | None) -> Right:
    """Return the right that a broker names; what is none means DENY, as it does there."""
    return _READ.get((text or "").strip(), "DENY")


def _checked(right: Right | None) -> Right | None:
    if right is not None and right not in RIGHTS:
        raise ValueError(f"a right is one of {', '.join(RIGHTS)}, not {right!r}")
    return right


def _list(what: str, rights: Mapping[str, Right] | None, wrap: Callable[[str], str]) -> str | None:
    if rights is None:
        return None
    if not rights:
        raise ValueError(f"{what} is empty, which means no change: give one name the right DENY")
    return ",".join(f"{wrap(name)}={_checked(right)}" for name, right in rights.items())
