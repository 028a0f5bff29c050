"""mqadmin's commands for topics.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../command/topic/
"""

from __future__ import annotations

import json
from typing import Any, Final

import click

from skylarkmq.client.admin import TopicRoute, TopicSettings
from skylarkmq.client.admin.topics import parse_perm, perm_letters
from skylarkmq.client.errors import NotFound, RocketMQError, RouteNotFound
from skylarkmq.protocol.flags import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.tools.mqadmin.java_text import millis_text, topic_text
from skylarkmq.tools.mqadmin.table import Call, Letter, OldCommand

QUEUES: Final = 8
READ_AND_WRITE: Final = 6
UNIT, UNIT_SUBSCRIBED = 1, 2
OF_GROUPS: Final = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
RULE: Final = "-" * 158


async def update_topic(call: Call) -> None:
    """Write all settings of a topic; what is not given has 4.9's default."""
    topic, perm = call.text("t"), perm_letters(call.number("p", READ_AND_WRITE))
    writes, order = call.number("w", QUEUES), call.true("o", False)
    reads = call.number("r", QUEUES)
    unit = UNIT * call.true("u", False) | UNIT_SUBSCRIBED * call.true("s", False)
    masters = await call.masters()
    try:
        there = {each.broker for each in (await call.admin.topic_route(topic)).settings}
    except RouteNotFound:
        there = set[str]()
    absent = [name for name in masters.values() if name not in there]
    present = [name for name in masters.values() if name in there]
    settings: dict[str, Any] = {
        "queues": writes, "read_queues": reads, "perm": perm, "order": order, "sys_flag": unit
    }  # fmt: skip
    if absent:
        await call.admin.create_topic(topic, brokers=absent, **settings)
    if present:
        await call.admin.update_topic(topic, brokers=present, **settings)
    for address in masters:
        click.echo(f"create topic to {address} success.")
    if order:
        counts = ";".join(f"{name}:{writes}" for name in masters.values())
        kind = "broker" if call.has("b") else "cluster"
        click.echo(f"set {kind} orderConf. isOrder=true, orderConf=[{counts}]")
    written = TopicSettings("", reads, writes, perm, order, sys_flag=unit)
    click.echo(topic_text(topic, written))


async def delete_topic(call: Call) -> None:
    """Delete a topic from a cluster and its name servers."""
    topic, cluster = call.text("t"), call.text("c")
    await call.admin.delete_topic(topic, cluster=cluster)
    click.echo(f"delete topic [{topic}] from cluster [{cluster}] success.")
    click.echo(f"delete topic [{topic}] from NameServer success.")


async def update_topic_perm(call: Call) -> None:
    """Change a topic's permission, on one broker or all of a cluster."""
    topic, perm = call.text("t"), call.number("p", READ_AND_WRITE)
    before = {each.broker: each for each in (await call.admin.topic_route(topic)).settings}
    for address, name in (await call.masters()).items():
        if name not in before:
            if call.has("b"):
                raise NotFound(f"broker {address} has no topic {topic}")
            continue
        old = parse_perm(before[name].perm)
        if call.has("b") and old == perm:
            click.echo("new perm equals to the old one!")
            continue
        await call.admin.update_topic(topic, perm=perm_letters(perm), brokers=[name])
        click.echo(f"update topic perm from {old} to {perm} in {address} success.")
        if call.has("b"):
            now = (await call.admin.topic_route(topic)).settings
            settings = next(each for each in now if each.broker == name)
            click.echo(f"{topic_text(topic, settings)}.")


async def topic_list(call: Call) -> None:
    """List all topics, with their clusters and groups when asked for."""
    names = await call.admin.list_topics(system=True, groups=True)
    if not call.has("c"):
        for name in names:
            click.echo(name)
        return
    click.echo(f"{'#Cluster Name':<20}  {'#Topic':<48}  {'#Consumer Group':<48}")
    for name in names:
        if name.startswith(OF_GROUPS):
            continue
        try:
            cluster = (await call.admin.topic_route(name)).brokers[0].cluster
            groups = await call.admin.topic_groups(name)
        except RocketMQError:
            cluster, groups = "", []
        for group in groups or [""]:
            click.echo(f"{cluster[:20]:<20}  {name[:64]:<64}  {group[:64]:<64}")


async def topic_route(call: Call) -> None:
    """Show what name servers tell clients of a topic."""
    route = await call.admin.topic_route(call.text("t"))
    if not call.has("l"):
        click.echo(json.dumps(route_body(route), indent="\t", separators=(",", ":")))
        return
    form = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
    heads = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    click.echo(form.format(*heads))
    settings = {each.broker: each for each in route.settings}
    for broker in route.brokers:
        addresses = ", ".join(f"{number}={place}" for number, place in broker.addresses.items())
        queues = settings[broker.name]
        click.echo(
            form.format(
                broker.cluster, broker.name, f"{{{addresses}}}",
                queues.read_queues, queues.write_queues, parse_perm(queues.perm),
            )
        )  # fmt: skip
    click.echo(RULE)
    reads = sum(each.read_queues for each in route.settings)
    writes = sum(each.write_queues for each in route.settings)
    click.echo(form.format("Total:", len(settings), "", reads, writes, ""))


def route_body(route: TopicRoute) -> dict[str, Any]:
    """Return a route in the form of the wire; numbers as names are quoted, as JSON wants it."""
    body: dict[str, Any] = {
        "brokerDatas": [
            {
                "brokerAddrs": {str(number): place for number, place in each.addresses.items()},
                "brokerName": each.name,
                "cluster": each.cluster,
            }
            for each in route.brokers
        ],
        "filterServerTable": {},
    }
    if route.order is not None:
        body["orderTopicConf"] = route.order
    body["queueDatas"] = [
        {
            "brokerName": each.broker,
            "perm": parse_perm(each.perm),
            "readQueueNums": each.read_queues,
            "topicSysFlag": each.sys_flag,
            "writeQueueNums": each.write_queues,
        }
        for each in route.settings
    ]
    return body


async def topic_status(call: Call) -> None:
    """Show the queues of a topic."""
    found = await call.admin.describe_topic(call.text("t"))
    click.echo(
        f"{'#Broker Name':<32}  {'#QID':<4}  {'#Min Offset':<20}  {'#Max Offset':<20}"
        "    #Last Updated"
    )
    for row in found.queues:
        click.echo(
            f"{row.queue.broker_name[:32]:<32}  {row.queue.queue_id:<4}  {row.begin:<20}  "
            f"{row.end:<20}    {millis_text(row.last_stored_at)}"
        )


async def topic_cluster_list(call: Call) -> None:
    """List the clusters that have a topic."""
    route = await call.admin.topic_route(call.text("t"))
    for name in sorted({broker.cluster for broker in route.brokers}):
        click.echo(name)


TOPIC: Final = Letter("t", "topic", "Topic name.", needed=True)
WHERE: Final = (
    Letter("b", "brokerAddr", "Which broker, by its address or name."),
    Letter("c", "clusterName", "Which cluster."),
)
PERM: Final = Letter("p", "perm", "2: W, 4: R, 6: RW.")
COMMANDS: Final = (
    OldCommand(
        "updateTopic", "Update or create topic",
        (
            *WHERE, TOPIC,
            Letter("r", "readQueueNums", "Queues to read from; default 8."),
            Letter("w", "writeQueueNums", "Queues to write to; default 8."),
            PERM,
            Letter("o", "order", "Order topic: true or false."),
            Letter("u", "unit", "Unit topic: true or false."),
            Letter("s", "hasUnitSub", "Has unit subscriptions: true or false."),
        ),
        update_topic, one_of="bc", would="update or create the topic",
    ),
    OldCommand(
        "deleteTopic", "Delete topic from broker and NameServer",
        (TOPIC, Letter("c", "clusterName", "From which cluster.", needed=True)),
        delete_topic, would="delete the topic",
    ),
    OldCommand(
        "updateTopicPerm", "Update topic perm", (*WHERE, TOPIC, PERM._replace(needed=True)),
        update_topic_perm, one_of="bc", would="change the permission of the topic",
    ),
    OldCommand("topicRoute", "Examine topic route info",
               (TOPIC, Letter("l", "list", "As a table.", bare=True)), topic_route),
    OldCommand("topicStatus", "Examine topic Status info", (TOPIC,), topic_status),
    OldCommand("topicClusterList", "Get cluster info for topic", (TOPIC,), topic_cluster_list),
    OldCommand(
        "topicList", "Fetch all topic list from name server",
        (Letter("c", "clusterModel", "With clusters and groups.", bare=True),), topic_list,
    ),
)  # fmt: skip
