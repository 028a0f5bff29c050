"""mqadmin's commands for clusters, brokers, name servers and access control.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/ (cluster/, broker/, namesrv/, acl/)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Final, cast

import click

from skylarkmq.client.admin import Right
from skylarkmq.client.admin.access import RIGHTS
from skylarkmq.client.admin.base import ask_brokers
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import services_of
from skylarkmq.tools.mqadmin.java_text import seconds_text
from skylarkmq.tools.mqadmin.table import Call, Letter, OldCommand
from skylarkmq.tools.mqadmin.topics import WHERE
from skylarkmq.tools.secret_options import masked, pairs_of

HOUR_MS: Final = 3_600_000
BASE: Final = "{:<16}  {:<22}  {:<4}  {:<22} {:<16} {:>19} {:>19} {:>10} {:>5} {:>6}"
MORE: Final = "{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}"
ACL: Final = "{:<16}  {:<22}  {:<22}  {:<20}  {:<22}  {:<22}"
LINES: Final = "============"


async def cluster_list(call: Call) -> None:
    """Show all brokers: how much they do, or how much they did today and yesterday."""
    while True:
        await (_more_stats(call) if call.has("m") else _base_info(call))
        if not call.has("i"):
            return
        await asyncio.sleep(call.number("i", 1))


async def _runtime(call: Call, address: str) -> Mapping[str, str]:
    """Return what a broker tells; nothing when it does not answer, which is told."""
    try:
        return (await call.admin.broker_runtime(address)).values
    except RocketMQError as error:
        click.echo(f"warning: {address}: {error}", err=True)
        return {}


async def _base_info(call: Call) -> None:
    heads = (
        "#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)",
        "#OutTPS(LOAD)", "#PCWait(ms)", "#Hour", "#SPACE",
    )  # fmt: skip
    click.echo(BASE.format(*heads))
    now_ms = services_of(call.client).clock.now_ms()
    for broker in (await call.admin.cluster()).brokers:
        for number, address in broker.addresses.items():
            told = await _runtime(call, address)
            earliest_ms = int(told.get("earliestMessageTimeStamp") or now_ms)
            click.echo(
                BASE.format(
                    broker.cluster, broker.name, number, address,
                    told.get("brokerVersionDesc", ""),
                    _load(told, "putTps", "send"), _load(told, "getTransferedTps", "pull"),
                    told.get("pageCacheLockTimeMills", ""),
                    f"{(now_ms - earliest_ms) / HOUR_MS:.2f}",
                    f"{float(told.get('commitLogDiskRatio') or 0):.4f}",
                )
            )  # fmt: skip


def _load(told: Mapping[str, str], key: str, pool: str) -> str:
    rate = float(next(iter(told.get(key, "").split()), 0))
    size = told.get(f"{pool}ThreadPoolQueueSize", "")
    wait_ms = told.get(f"{pool}ThreadPoolQueueHeadWaitTimeMills", "")
    return f"{rate:9.2f}({size},{wait_ms}ms)"


async def _more_stats(call: Call) -> None:
    heads = (
        "#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday",
        "#OutTotalToday",
    )  # fmt: skip
    click.echo(MORE.format(*heads))
    for broker in (await call.admin.cluster()).brokers:
        for address in broker.addresses.values():
            told = await _runtime(call, address)
            count = {
                (way, when): int(told.get(f"msg{way}Total{when}") or 0)
                for way in ("Put", "Get")
                for when in ("YesterdayMorning", "TodayMorning", "TodayNow")
            }
            spans = (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow"))
            counts = [
                count[way, end] - count[way, begin]
                for begin, end in spans
                for way in ("Put", "Get")
            ]
            click.echo(MORE.format(broker.cluster, broker.name, *counts))


async def broker_status(call: Call) -> None:
    """Show what brokers count and measure, slaves of a cluster, too."""
    if call.has("b"):
        for key, value in sorted((await call.admin.broker_runtime(call.text("b"))).values.items()):
            click.echo(f"{key:<32}: {value}")
        return
    for addresses in (await call.members()).values():
        for address in addresses.values():
            for key, value in sorted((await _runtime(call, address)).items()):
                click.echo(f"{address:<24} {key:<32}: {value}")


async def broker_consume_stats(call: Call) -> None:
    """Show how far all groups of a broker are."""
    form = "{:<64}  {:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}"
    heads = (
        "#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset", "#Diff",
        "#LastTime",
    )  # fmt: skip
    found = await call.admin.broker_progress(call.text("b"), order_only=call.true("o", False))
    click.echo(form.format(*heads))
    total, level = 0, call.number("l", 0)
    for group in found:
        for row in group.queues:
            behind = row.end - row.committed
            total += behind
            if behind >= level and row.consumed_at is not None:
                click.echo(
                    form.format(
                        row.queue.topic[:64], group.group, row.queue.broker_name[:32],
                        row.queue.queue_id, row.end, row.committed, behind,
                        seconds_text(row.consumed_at),
                    )
                )  # fmt: skip
    click.echo(f"\nDiff Total: {total}")


async def get_broker_config(call: Call) -> None:
    """Show the settings of a broker, or of all of a cluster."""
    if call.has("b"):
        settings = await call.admin.broker_config(call.text("b"))
        _print_config(f"{LINES}{call.text('b')}{LINES}", settings)
        return
    members = await call.members()
    found = await ask_brokers(
        lambda _, address: call.admin.broker_config(address),
        {f"{name} ({id_})": at for name, places in members.items() for id_, at in places.items()},
        call.unanswered,
    )
    for name, places in members.items():
        for id_, address in places.items():
            title = (
                f"My Master: {places.get(0)}=====Slave: {address}" if id_ else f"Master: {address}"
            )
            if (told := found.get(f"{name} ({id_})")) is not None:
                _print_config(f"{LINES}{title}{LINES}", told)


def _print_config(title: str, settings: Mapping[str, str]) -> None:
    click.echo(title)
    for key, value in sorted(settings.items()):
        click.echo(f"{key:<50}=  {masked(key, value)}")
    click.echo()


async def update_broker_config(call: Call) -> None:
    """Change a setting of a broker, or of all masters of a cluster."""
    for address in await call.masters():
        await call.admin.set_broker_config(address, {call.text("k"): call.text("v")})
        click.echo(f"update broker config success, {address}")


async def get_namesrv_config(call: Call) -> None:
    """Show the settings of the name servers."""
    for address, settings in (await call.admin.name_server_config()).items():
        click.echo(f"{LINES}{address}{LINES}")
        for key, value in sorted(settings.items()):
            click.echo(f"{key:<50}=  {masked(key, value)}")


async def update_namesrv_config(call: Call) -> None:
    """Change a setting of the name servers."""
    key, value = call.text("k"), call.text("v")
    await call.admin.set_name_server_config({key: value})
    servers = ", ".join((await call.admin.cluster()).name_servers)
    click.echo(f"update name server config success![{servers}]\n{key} : {masked(key, value)}")


async def update_kv_config(call: Call) -> None:
    """Let name servers keep a text."""
    await call.admin.keep_text(call.text("s"), call.text("k"), call.text("v"))
    click.echo("create or update kv config to namespace success.")


async def delete_kv_config(call: Call) -> None:
    """Let name servers forget a text."""
    await call.admin.keep_text(call.text("s"), call.text("k"), None)
    click.echo("delete kv config from namespace success.")


async def wipe_write_perm(call: Call) -> None:
    """Let name servers tell clients not to send to a broker."""
    broker = call.text("b")
    count = await call.admin.stop_writes(broker)
    for server in (await call.admin.cluster()).name_servers:
        click.echo(f"wipe write perm of broker[{broker}] in name server[{server}] OK, {count}")


async def add_write_perm(call: Call) -> None:
    """Undo `wipeWritePerm`."""
    broker = call.text("b")
    count = await call.admin.allow_writes(broker)
    for server in (await call.admin.cluster()).name_servers:
        click.echo(f"add write perm of broker[{broker}] in name server[{server}] OK, {count}")


# Access control


async def update_acl_config(call: Call) -> None:
    """Make or change an account. Unlike RocketMQ's, it does not print the secret."""
    secret: str | None = call.text("s") or None
    if secret == "-":
        secret = sys.stdin.readline().rstrip("\r\n")
    for address in await call.masters():
        await call.admin.put_account(
            call.text("a"),
            secret,
            admin=call.true("m", False) if call.has("m") else None,
            default_topic_right=_right(call, "i"),
            default_group_right=_right(call, "u"),
            topic_rights=_rights(call, "t"),
            group_rights=_rights(call, "g"),
            white_address=call.text("w") if call.has("w") else None,
            brokers=[address],
        )
        click.echo(f"create or update plain access config to {address} success.")
    click.echo(f"account's accesskey is:{call.text('a')}")


def _right(call: Call, letter: str) -> Right | None:
    if not call.has(letter):
        return None
    if call.text(letter) not in RIGHTS:
        raise click.UsageError(f"-{letter}: a right is one of {', '.join(RIGHTS)}")
    return cast("Right", call.text(letter))


def _rights(call: Call, letter: str) -> dict[str, Right] | None:
    if not call.has(letter):
        return None
    pairs = pairs_of(call.text(letter).split(","), "NAME=RIGHT")
    return cast("dict[str, Right]", pairs)


async def delete_acl_config(call: Call) -> None:
    """Delete an account."""
    for address in await call.masters():
        await call.admin.delete_account(call.text("a"), brokers=[address])
        click.echo(f"delete plain access config account from {address} success.")
    click.echo(f"account's accesskey is:{call.text('a')}")


async def update_global_white_addr(call: Call) -> None:
    """Replace the white list."""
    addresses = [each.strip() for each in call.text("g").split(",") if each.strip()]
    for address in await call.masters():
        await call.admin.set_white_list(addresses, file=call.text("p") or None, brokers=[address])
        click.echo(f"update global white remote addresses to {address} success.")


async def cluster_acl_config_version(call: Call) -> None:
    """Show how often administrators changed the files of access control."""
    heads = (
        "#Cluster Name", "#Broker Name", "#Broker Addr", "#AclFilePath", "#AclConfigVersionNum",
        "#AclLastUpdateTime",
    )  # fmt: skip
    if call.has("c"):
        click.echo(ACL.format(*heads))
    clusters = {each.name: each.cluster for each in (await call.admin.cluster()).brokers}
    places = {name: address for address, name in (await call.masters()).items()}
    found = await ask_brokers(
        lambda name, _: call.admin.access_files(name), places, call.unanswered
    )
    for name, files in found.items():
        for file in files:
            changed = seconds_text(file.changed_at)
            row = (clusters[name], name, places[name], file.path, file.change_count, changed)
            click.echo(ACL.format(*row))
    who = "broker" if call.has("b") else "cluster"
    click.echo(f"get {who}'s plain access config version success.")


KEY: Final = Letter("k", "key", "Its key.", needed=True)
VALUE: Final = Letter("v", "value", "Its value.", needed=True)
NAMESPACE: Final = Letter("s", "namespaceOfKey", "The namespace.", needed=True)
BROKER_NAME: Final = Letter("b", "brokerName", "Broker name.", needed=True)
ACCOUNT: Final = Letter("a", "accessKey", "Which account.", needed=True)
COMMANDS: Final = (
    OldCommand(
        "clusterList", "List all of clusters",
        (
            Letter("m", "moreStats", "Print more stats.", bare=True),
            Letter("i", "interval", "Print again after so many seconds."),
        ),
        cluster_list,
    ),
    OldCommand("brokerStatus", "Fetch broker runtime status data", WHERE, broker_status,
               one_of="bc"),
    OldCommand(
        "brokerConsumeStats", "Fetch broker consume stats data",
        (
            WHERE[0]._replace(needed=True),
            Letter("t", "timeoutMillis", "No effect: see --timeout."),
            Letter("l", "level", "Only queues in which a group is so far behind."),
            Letter("o", "order", "Order topics alone: true or false."),
        ),
        broker_consume_stats,
    ),
    OldCommand("getBrokerConfig", "Get broker config by cluster or special broker", WHERE,
               get_broker_config, one_of="bc"),
    OldCommand("updateBrokerConfig", "Update broker's config", (*WHERE, KEY, VALUE),
               update_broker_config, one_of="bc", would="change the setting of brokers"),
    OldCommand("getNamesrvConfig", "Get configs of name server", (), get_namesrv_config),
    OldCommand("updateNamesrvConfig", "Update configs of name server", (KEY, VALUE),
               update_namesrv_config, would="change the setting of name servers"),
    OldCommand("updateKvConfig", "Create or update KV config", (NAMESPACE, KEY, VALUE),
               update_kv_config, would="keep the text"),
    OldCommand("deleteKvConfig", "Delete KV config", (NAMESPACE, KEY),
               delete_kv_config, would="forget the text"),
    OldCommand("wipeWritePerm", "Wipe write perm of broker in all name servers", (BROKER_NAME,),
               wipe_write_perm, would="stop writes to the broker"),
    OldCommand("addWritePerm", "Add write perm of broker in all name servers", (BROKER_NAME,),
               add_write_perm, would="allow writes to the broker"),
    OldCommand(
        "updateAclConfig", "Update acl config yaml file in broker",
        (
            *WHERE, ACCOUNT,
            Letter("s", "secretKey", "Its secret; - reads it from standard input."),
            Letter("w", "whiteRemoteAddress", "From there it needs no signature."),
            Letter("i", "defaultTopicPerm", "Right to topics that -t does not name."),
            Letter("u", "defaultGroupPerm", "Right to groups that -g does not name."),
            Letter("t", "topicPerms", "Such as topicA=DENY,topicD=SUB."),
            Letter("g", "groupPerms", "Such as groupA=DENY,groupD=SUB."),
            Letter("m", "admin", "May administer: true or false."),
        ),
        update_acl_config, one_of="bc", would="write the account",
    ),
    OldCommand("deleteAclConfig", "Delete Acl Config Account in broker", (*WHERE, ACCOUNT),
               delete_acl_config, one_of="bc", would="delete the account",
               alias="deleteAccessConfig"),
    OldCommand("clusterAclConfigVersion", "List all of acl config version information in cluster",
               WHERE, cluster_acl_config_version, one_of="bc"),
    OldCommand(
        "updateGlobalWhiteAddr", "Update global white address for acl Config File in broker",
        (
            *WHERE,
            Letter("g", "globalWhiteRemoteAddresses", "Such as 10.10.103.*,192.168.0.*.",
                   needed=True),
            Letter("p", "aclFileFullPath", "Of this file."),
        ),
        update_global_white_addr, one_of="bc", would="replace the white list",
    ),
)  # fmt: skip
