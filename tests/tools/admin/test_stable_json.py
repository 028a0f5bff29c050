"""Programs read these names: none goes away, and a new one is entered here."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from skylarkmq.cli import main
from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.connection import changes, online, targeted
from skylarkmq.tools.watching import watched
from tests.tools.admin.support import GROUP, TOPIC, Shell, paths

QUEUE = "queue.broker queue.queue_id queue.topic"
GROUP_SETTINGS = (
    "broker broker_id broker_id_when_slow broadcast_enabled consume_enabled from_min_enabled"
    " max_retries notify_members orderly retry_queues"
)
CONNECTION = "address brokers[] client_id language version"
MEMBERS = (
    "group model kind start_from differing[]",
    ("members[]", CONNECTION),
    ("subscriptions[]", "expression kind topic"),
)
RESET = ("dry_run group topic", ("queues[]", f"after before how moved {QUEUE}"))
CONTEXT = "access_key current name namespace namesrv secret_key tls tls_ca tls_cert"
PROGRESS = ("group lag tps", ("queues[]", f"committed consumed_at end lag {QUEUE}"))

Names = tuple[str | tuple[str, str], ...] | str
ANSWERS: dict[str, Names] = {
    "topic list": "[].topic",
    "topic describe orders": (
        "groups[] message_count topic",
        ("queues[]", f"begin end last_stored_at {QUEUE}"),
        (
            "settings[]",
            "broker deduplication filter_type message_type order perm read_queues sys_flag"
            " write_queues",
        ),
    ),
    "topic groups orders": "[].group",
    "topic stats orders": (("[]", "broker day group hour minute minute_per_second what"),),
    "topic create made": "action brokers[] topic",
    "topic update made --perm r --yes": "action changes.perm topic",
    "topic delete made --yes": "action cluster topics[]",
    "group list": "[].group",
    "group describe live": (
        "group",
        ("settings[]", GROUP_SETTINGS),
        ("members", "group model kind start_from differing[]"),
        ("members.members[]", CONNECTION),
        ("members.subscriptions[]", "expression kind topic"),
    ),
    "group members live": MEMBERS,
    "group lag": (("[]", "group lag members tps"),),
    "group lag billing": PROGRESS,
    "group reset billing orders --to last --yes": RESET,
    "group seek billing orders --broker broker-a --queue 0 --offset 9 --yes": RESET,
    "group clone billing copy --yes": "action source target topic",
    "group create made": "action brokers[] group",
    "group update made --max-retries 3 --yes": "action changes.max_retries group",
    "group delete made --yes": "action groups[]",
    "client list": (("[]", f"{CONNECTION} group release role"),),
    "client show @consumer": (
        "client_id",
        ("connections[]", f"{CONNECTION} group release role"),
        ("consumers[]", "client_id group"),
    ),
    "cluster status": (
        ("name_servers[]", "address error brokers.broker-a[]"),
        ("brokers[]", "address behind broker broker_id cluster disk_used error failover"),
        ("brokers[]", "log_begin log_end role started_at version why"),
    ),
    "cluster health --disk-max 0 --behind-max 0": "[]",
    "cluster drain broker-a --yes": "action broker how master topic_count",
    "cluster undrain broker-a": "action broker topic_count",
    "config list": (("[]", "key of value"),),
    "config get brokerName": (("[]", "key of value"),),
    "config set defaultQueryMaxNum=33 --all --yes": (("[]", "before key of value"),),
    "context add one --namesrv ns:9876": f"action {CONTEXT}",
    "context list": (("[]", CONTEXT),),
    "context use one": f"action {CONTEXT}",
    "context show": CONTEXT,
    "context remove one": f"action {CONTEXT}",
}
"""Command -> its names, those of a list or an object below it with that before them."""
ELSEWHERE = {
    "acl list", "acl show", "acl put", "acl delete", "acl white-list", "acl files",
    "cluster failover",
}  # fmt: skip
"""They need another broker: `test_accounts.py`, `test_who_leads.py`."""
GROUPS = ("topic", "group", "client", "cluster", "config", "acl", "context")
WITHIN_A_MEMBER = ("consumers[].properties", "consumers[].topics", "consumers[].subscriptions")
"""What a consumer says of itself; only SkylarkMQ's own say it in the same words."""


def names(said: Names) -> set[str]:
    """Return the paths that a row of ANSWERS stands for."""
    found: set[str] = set()
    for part in (said,) if isinstance(said, str) else said:
        at, texts = ("", part) if isinstance(part, str) else (f"{part[0]}.", part[1])
        found |= {f"{at}{name}" for name in texts.split()}
    return found


@pytest.fixture(scope="module")
def consumer(broker: SyncBroker) -> Iterator[str]:
    """The client id of a consumer that is connected, beside a producer."""
    with broker.client() as client, Producer(client=client) as producer:
        producer.send(Message("live-topic", "one"))
        with Consumer(
            "live-topic", client=client, group="live", start_from=StartFrom.FIRST
        ) as member:
            member.getone(10.0).ack()
            yield client.client_id


def test_every_command_answers_with_its_names(shell: Shell, consumer: str) -> None:
    """In this order, as some undo what others did."""
    for command, said in ANSWERS.items():
        answer = shell.json(*command.replace("@consumer", consumer).split())
        found = {
            path
            for path in paths(answer)
            if not path.startswith(WITHIN_A_MEMBER) and ".queues[]" not in path
        } - {"consumers[].stack"}
        assert found == names(said), command


def test_no_command_is_left_out() -> None:
    context = click.Context(main)
    tried = {tuple(command.split()[:2]) for command in ANSWERS}
    for name in GROUPS:
        group = main.get_command(context, name)
        assert isinstance(group, click.Group)
        for each, command in group.commands.items():
            if command.hidden:  # it was there before
                continue
            assert (name, each) in tried or f"{name} {each}" in ELSEWHERE, (name, each)


def test_yaml_and_lines_have_the_same_names(shell: Shell) -> None:
    assert "topic: orders" in shell.ok("topic", "list", "-o", "yaml").out
    lines = shell.ok("group", "lag", GROUP, "-o", "ndjson").out.splitlines()
    assert len(lines) == 1 and '"lag": ' in lines[0]
    assert f'{{"topic": "{TOPIC}"}}' in shell.ok("topic", "list", "-o", "ndjson").out


def test_no_command_has_a_parameter_of_a_shared_options_name() -> None:
    """It would take the value of the other: the options of the connection are in all of them."""
    every = click.command()(online(changes(targeted(watched(lambda: None)))))
    shared = {parameter.name for parameter in every.params}
    assert {"namesrv", "timeout", "yes", "cluster", "every"} <= shared

    def walk(command: click.Command, words: str) -> Iterator[str]:
        found = [parameter.name for parameter in command.params]
        twice = {name for name in shared if found.count(name) > 1}
        yield from (f"{words}: {name}" for name in twice)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                yield from walk(child, f"{words} {name}")

    assert not [*walk(main, "skylarkmq")]
