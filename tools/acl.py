"""The commands `skylarkmq acl ...`: accounts and white lists of the brokers' access control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar, cast

import click

from skylarkmq.client.admin import AccessRules, AccountSummary, Admin, Right
from skylarkmq.client.admin.access import RIGHTS
from skylarkmq.client.errors import NotFound, NotSupported, RequestTimeout
from skylarkmq.tools.config import asked_of
from skylarkmq.tools.connection import Change, Session, Where, changes, online, targeted
from skylarkmq.tools.output import Columns, Parts, Row, moment
from skylarkmq.tools.running import EXIT_CODES
from skylarkmq.tools.secret_options import pairs_of, with_secret

ACCOUNTS: Final[Columns] = {
    "BROKER": "broker", "ACCESS KEY": "access_key", "ADMIN": "admin",
    "TOPICS": lambda row: rights_text(row["topic_rights"], row["default_topic_right"]),
    "GROUPS": lambda row: rights_text(row["group_rights"], row["default_group_right"]),
    "WITHOUT SIGNATURE FROM": "white_address",
}  # fmt: skip
RIGHT_COLUMNS: Final = ("TOPICS", "GROUPS")
FILES: Final[Columns] = {
    "BROKER": "broker", "FILE": "path", "CHANGES": "change_count",
    "LAST CHANGE": moment("changed_at"),
}  # fmt: skip
ADDRESSES: Final[Columns] = {"BROKER": "broker", "ADDRESS": "address"}
T = TypeVar("T")
RIGHT: Final = click.Choice(RIGHTS)


@click.group(epilog=EXIT_CODES)
def acl() -> None:
    """Access control: accounts, rights, white lists.

    Accounts are those of RocketMQ 4.9 (plain_acl.yml); each broker has its own. RocketMQ 4.9.8 does
    not tell them: `list`, `show` and `white-list` are refused there, the changes work.
    """


@acl.command("list", epilog=EXIT_CODES)
@targeted
@online
def list_accounts(session: Session, where: Where) -> None:
    """List the accounts of each broker, without their secrets."""

    async def work(admin: Admin) -> None:
        found = await _rules(session, admin, where)
        rows = [_account(rules, each) for rules in found for each in rules.accounts]
        session.output.rows(rows, ACCOUNTS, none="no accounts")

    session.administer(work)


@acl.command("show", epilog=EXIT_CODES)
@click.argument("account", metavar="ACCESS_KEY")
@targeted
@online
def show(session: Session, where: Where, account: str) -> None:
    """Show one account as each broker has it, without its secret."""

    async def work(admin: Admin) -> None:
        rows = [
            _account(rules, each)
            for rules in await _rules(session, admin, where)
            for each in rules.accounts
            if each.access_key == account
        ]
        if not rows:
            raise NotFound(f"no broker has the account {account}")
        rights = [
            {"broker": row["broker"], "of": kind, "name": name, "right": right}
            for row in rows
            for kind in ("topic", "group")
            for name, right in [
                *row[f"{kind}_rights"].items(),
                ("(all others)", row[f"default_{kind}_right"]),
            ]
        ]
        fields: Row = {"access_key": account, "accounts": rows}
        parts: Parts = {
            "Account": (
                rows,
                {name: of for name, of in ACCOUNTS.items() if name not in RIGHT_COLUMNS},
            ),
            "Rights": (rights, None),
        }
        session.output.parts(fields, parts)

    session.administer(work)


@acl.command("put", epilog=EXIT_CODES)
@click.argument("account", metavar="ACCESS_KEY")
@click.option("--admin/--no-admin", "is_admin", default=None, help="Whether it administers.")
@click.option("--default-topic", type=RIGHT, help="To topics that --topic does not name.")
@click.option("--default-group", type=RIGHT, help="To groups that --group does not name.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME=RIGHT",
    help="Repeatable; all of them take the place of the old list.",
)
@click.option("--group", "groups", multiple=True, metavar="NAME=RIGHT", help="The same for groups.")
@click.option("--white-address", help="From there it needs no signature; '' for nowhere.")
@with_secret
@targeted
@changes
@online
def put(
    session: Session,
    change: Change,
    where: Where,
    account: str,
    is_admin: bool | None,
    secret: str | None,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    **given: Any,
) -> None:
    """Make an account, or change what is given of one; the rest stays as it is.

    Rights are DENY, PUB, SUB and PUB|SUB. A new account needs a secret of 7 characters or more;
    RocketMQ's brokers want it each time, and take the rank of an admin away unless --admin is said.
    The secret goes over the wire: use TLS.
    """
    topic_rights, group_rights = _rights(topics), _rights(groups)
    if not change.allowed(f"write the account {account} on {where}"):
        return

    async def work(admin: Admin) -> None:
        await admin.put_account(
            account,
            secret,
            admin=is_admin,
            default_topic_right=given["default_topic"],
            default_group_right=given["default_group"],
            topic_rights=topic_rights,
            group_rights=group_rights,
            white_address=given["white_address"],
            cluster=where.cluster,
            brokers=where.brokers,
        )
        fields = {"action": "written", "access_key": account}
        session.output.done(fields, f"account {account} is written on {where}")

    session.administer(work)


@acl.command("delete", epilog=EXIT_CODES)
@click.argument("account", metavar="ACCESS_KEY")
@targeted
@changes
@online
def delete(session: Session, change: Change, where: Where, account: str) -> None:
    """Delete an account; its clients are refused from now on."""
    if not change.allowed(f"delete the account {account} from {where}"):
        return

    async def work(admin: Admin) -> None:
        await admin.delete_account(account, cluster=where.cluster, brokers=where.brokers)
        fields = {"action": "deleted", "access_key": account}
        session.output.done(fields, f"account {account} is deleted from {where}")

    session.administer(work)


@acl.command("white-list", epilog=EXIT_CODES)
@click.argument("addresses", nargs=-1)
@click.option("--set", "replaces", is_flag=True, help="Replace it by ADDRESSES, or by nobody.")
@click.option("--file", help="With --set: its path on the broker, where there are several.")
@targeted
@changes
@online
def white_list(
    session: Session,
    change: Change,
    where: Where,
    addresses: tuple[str, ...],
    replaces: bool,
    file: str | None,
) -> None:
    """Show the addresses from which everything is allowed without an account; replace them.

    Such as 10.0.0.7, 192.168.1.*, 10.0.0.{1,2}.
    """
    if (addresses or file) and not replaces:
        raise click.UsageError("ADDRESSES and --file need --set, which replaces the whole list")
    asked = f"let {', '.join(addresses) or 'nobody'} do everything without an account on {where}"
    if replaces and not change.allowed(asked):
        return

    async def work(admin: Admin) -> None:
        if replaces:
            await admin.set_white_list(
                addresses, file=file, cluster=where.cluster, brokers=where.brokers
            )
            fields = {"action": "replaced", "white_list": [*addresses]}
            session.output.done(fields, f"the white list is replaced on {where}")
            return
        rows = [
            {"broker": rules.broker, "address": each}
            for rules in await _rules(session, admin, where)
            for each in rules.white_list
        ]
        session.output.rows(rows, ADDRESSES, none="nobody")

    session.administer(work)


@acl.command("files", epilog=EXIT_CODES)
@targeted
@online
def files(session: Session, where: Where) -> None:
    """List the brokers' files of access control, and how often administrators changed them."""

    async def work(admin: Admin) -> None:
        found = await asked_of(
            admin, where, partial(asked, admin, admin.access_files), session.output.unanswered
        )
        rows = [
            {"broker": name, **each.to_json()} for name, files in found.items() for each in files
        ]
        session.output.rows(rows, FILES, none="no files")

    session.administer(work)


async def _rules(session: Session, admin: Admin, where: Where) -> list[AccessRules]:
    ask = partial(asked, admin, admin.access_rules)
    return [*(await asked_of(admin, where, ask, session.output.unanswered)).values()]


async def asked(admin: Admin, ask: Callable[[str], Awaitable[T]], broker: str) -> T:
    """Return what a broker answers.

    Raises:
        NotSupported: it has no access control. RocketMQ's does not answer at all then.
    """
    try:
        return await ask(broker)
    except RequestTimeout:
        if (await admin.broker_config(broker)).get("aclEnable") != "false":
            raise
        raise NotSupported(
            f"{broker} has no access control: aclEnable is false there",
            hint="It is set in the file of the broker, before its start",
        ) from None


def _account(rules: AccessRules, summary: AccountSummary) -> dict[str, Any]:
    return {"broker": rules.broker, **summary.to_json()}


def _rights(texts: tuple[str, ...]) -> dict[str, Right] | None:
    pairs = pairs_of(texts, "NAME=RIGHT")
    for name, right in pairs.items():
        if right not in RIGHTS:
            raise click.UsageError(f"{name}={right}: a right is one of {', '.join(RIGHTS)}")
    return cast("dict[str, Right]", pairs) or None


def rights_text(rights: Mapping[str, str], default: str) -> str:
    """Return rights in one line: those by name, and the one of all others."""
    return ", ".join([*(f"{name}={right}" for name, right in rights.items()), f"else {default}"])
