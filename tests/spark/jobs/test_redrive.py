"""Dead letters go back once: against a broker that answers, refuses, or says nothing; no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.errors import RouteNotFound
from skylarkmq.client.sync import Admin, Client, Consumer, Producer
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import dlq_topic
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import JobError, JobSettings
from skylarkmq.spark.jobs.dlq import (
    RedriveOptions,
    check_readable,
    ledger_place,
    summarise_redrive,
)
from skylarkmq.spark.jobs.redrive import GIVE_UP_AFTER, Letter, RedriveCounts, Redriver
from skylarkmq.spark.jobs.redrive_ledger import Entry, LetterKey, RedriveLedger
from skylarkmq.spark.ledgers.objects import make_folder
from skylarkmq.spark.own_loop import Pending
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.storage import Location
from skylarkmq.testing.threaded import SyncBroker, run_broker_sync

GROUP = "billing"
COUNT = 5


@pytest.fixture
def site() -> Iterator[SyncBroker]:
    """A broker with a topic whose messages the group gave up."""
    with run_broker_sync() as broker:
        broker.create_topic("orders", 2)
        with Client(broker.namesrv_addr) as client:
            with Producer(client=client) as producer:
                for number in range(COUNT):
                    producer.send(
                        Message(
                            "orders", b"body %d" % number, tags="T", keys=(f"k{number}",),
                            properties={"own": "yes"}, flag=7,
                        )
                    )  # fmt: skip
            give_up(client, COUNT)
        yield broker


def give_up(client: Client, count: int) -> None:
    with Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST) as member:
        for _ in range(count):
            member.getone(30).dead_letter()
        member.commit()


def connect(broker: SyncBroker, timeout_s: float = 3.0, namespace: str = "") -> BlockingClient:
    settings = ConnectionSettings(
        name_servers=(broker.namesrv_addr,), request_timeout_s=timeout_s, namespace=namespace
    )
    return BlockingClient(settings)


def letters_of(client: BlockingClient) -> list[Letter]:
    """Read them as Spark would."""
    found: list[Letter] = []
    for queue in client.read_queues(dlq_topic(GROUP)):
        page = client.pull(queue, 0, 1000, 1 << 22)
        for message in decode_messages(page.records):
            place = (queue.broker_name, queue.queue_id, message.queue_offset)
            found.append(
                Letter(
                    LetterKey(*place, message.msg_id),
                    message.body,
                    message.properties,
                    message.born_timestamp,
                    message.flag,
                    message.sys_flag,
                    message.reconsume_times,
                )
            )
    return found


def redrive(
    broker: SyncBroker, ledger: Path, *, timeout_s: float = 3.0, send: bool = True,
    resend_unknown: bool = False, letters: list[Letter] | None = None,
) -> RedriveCounts:  # fmt: skip
    with (
        closing(connect(broker, timeout_s)) as client,
        RedriveLedger(Location.parse(str(ledger)), GROUP, read_only=not send) as kept,
    ):
        found = letters_of(client) if letters is None else letters
        driver = Redriver(client, kept, rate=None, dry_run=not send, resend_unknown=resend_unknown)
        driver.run(found, lambda done: None)
        return driver.counts


def copies(broker: SyncBroker) -> list[MessageExt]:
    return broker.messages("orders")[COUNT:]


def test_a_copy_is_like_the_message_and_starts_anew(site: SyncBroker, tmp_path: Path) -> None:
    first = {message.msg_id: message for message in site.messages("orders")}
    counts = redrive(site, tmp_path / "ledger")
    assert counts.outcomes == {"sent": COUNT}
    assert counts.topics == {("orders", "sent"): COUNT}
    again = copies(site)
    assert {message.msg_id for message in again} == set(first)
    for copy in again:
        original = first[copy.msg_id]
        assert (copy.body, copy.tags, copy.keys) == (original.body, "T", original.keys)
        assert (copy.flag, copy.reconsume_times) == (7, 0)
        assert copy.born_timestamp == original.born_timestamp
        assert copy.properties["own"] == "yes"
        assert copy.properties["ORIGIN_MESSAGE_ID"]
        assert not {"RETRY_TOPIC", "DELAY", "REAL_TOPIC", "RECONSUME_TIME"} & set(copy.properties)


def test_a_dry_run_sends_and_writes_nothing(site: SyncBroker, tmp_path: Path) -> None:
    counts = redrive(site, tmp_path / "ledger", send=False)
    assert counts.outcomes == {"would_send": COUNT}
    assert copies(site) == []
    assert not (tmp_path / "ledger").exists()


def test_run_again_nothing_is_sent_again(site: SyncBroker, tmp_path: Path) -> None:
    redrive(site, tmp_path / "ledger")
    assert redrive(site, tmp_path / "ledger").outcomes == {"done_before": COUNT}
    assert redrive(site, tmp_path / "ledger", send=False).outcomes == {"done_before": COUNT}
    assert len(copies(site)) == COUNT


def test_a_refusal_is_an_outcome_and_the_next_run_sends(site: SyncBroker, tmp_path: Path) -> None:
    site.faults.fail(RequestCode.SEND_MESSAGE, 2, ResponseCode.SERVICE_NOT_AVAILABLE, "full")
    counts = redrive(site, tmp_path / "ledger")
    assert counts.outcomes == {"sent": COUNT - 2, "failed": 2}
    (error,) = counts.errors
    assert "SERVICE_NOT_AVAILABLE(14): full" in error
    assert redrive(site, tmp_path / "ledger").outcomes == {"done_before": COUNT - 2, "sent": 2}
    assert len({copy.msg_id for copy in copies(site)}) == len(copies(site)) == COUNT


@pytest.mark.slow  # waits until the time for an answer is over
@pytest.mark.parametrize("stored", [True, False])
def test_no_answer_is_unknown_and_the_next_run_looks(
    site: SyncBroker, tmp_path: Path, stored: bool
) -> None:
    lose = site.faults.drop_reply if stored else site.faults.drop_request
    lose(RequestCode.SEND_MESSAGE, 2)
    counts = redrive(site, tmp_path / "ledger", timeout_s=2.0)
    assert counts.outcomes == {"sent": COUNT - 2, "unknown": 2}
    again = redrive(site, tmp_path / "ledger").outcomes
    assert again == {"done_before": COUNT - 2, "found" if stored else "sent": 2}
    assert len({copy.msg_id for copy in copies(site)}) == len(copies(site)) == COUNT
    assert redrive(site, tmp_path / "ledger").outcomes == {"done_before": COUNT}


def test_system_error_may_have_stored_it(site: SyncBroker, tmp_path: Path) -> None:
    site.faults.fail(RequestCode.SEND_MESSAGE, 1, ResponseCode.SYSTEM_ERROR, "oops")
    assert redrive(site, tmp_path / "ledger").outcomes["unknown"] == 1
    assert redrive(site, tmp_path / "ledger").outcomes["sent"] == 1
    assert len(copies(site)) == COUNT


def test_what_replicas_did_not_confirm_may_be_stored(
    site: SyncBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, refusals = BlockingClient.wait, [{UNCONFIRMED_FIELD: "true"}] * 2

    def stored_and_refused(
        client: BlockingClient, pending: Pending, until_s: float
    ) -> RemotingCommand:
        answer = wait(client, pending, until_s)
        if "msgId" in answer.ext_fields and refusals:
            answer = RemotingCommand(ResponseCode.SERVICE_NOT_AVAILABLE, ext_fields=refusals.pop())
        return answer

    monkeypatch.setattr(BlockingClient, "wait", stored_and_refused)
    assert redrive(site, tmp_path / "ledger").outcomes == {"sent": COUNT - 2, "unknown": 2}
    assert redrive(site, tmp_path / "ledger").outcomes == {"done_before": COUNT - 2, "found": 2}
    assert len(copies(site)) == COUNT


def test_killed_at_any_line_no_letter_goes_twice(site: SyncBroker, tmp_path: Path) -> None:
    redrive(site, tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) == 1 + 2 * COUNT
    # All copies are there. A ledger that ends after the intents must find every one of them.
    for size in range(sum(map(len, lines[: 1 + COUNT])), len(data)):
        if size % 13 and data[size : size + 1] != b"\n":
            continue
        path = tmp_path / f"cut{size}"
        path.write_bytes(data[:size])
        outcomes = redrive(site, path).outcomes
        assert outcomes["found"] + outcomes["done_before"] == COUNT
        assert outcomes.total() == COUNT
    assert len(copies(site)) == COUNT


def test_killed_before_the_sends_they_are_sent(site: SyncBroker, tmp_path: Path) -> None:
    with closing(connect(site)) as client:
        found = letters_of(client)
        queue = client.write_queues("orders")[0]
        ends = client.max_offsets([queue])
    with RedriveLedger(Location.parse(str(tmp_path / "ledger")), GROUP) as ledger:
        ledger.record(Entry(letter.key, "intent", queue, ends[queue], "") for letter in found)
    assert redrive(site, tmp_path / "ledger").outcomes == {"sent": COUNT}
    assert len(copies(site)) == COUNT


def test_what_cannot_be_told_stays_unknown(site: SyncBroker, tmp_path: Path) -> None:
    with closing(connect(site)) as client:
        found = letters_of(client)
        queue = client.write_queues("orders")[0]
    with RedriveLedger(Location.parse(str(tmp_path / "ledger")), GROUP) as ledger:
        ledger.record([Entry(found[0].key, "intent", queue, 1_000_000, "")])
    counts = redrive(site, tmp_path / "ledger", letters=found[:1])
    assert counts.outcomes == {"unknown": 1}
    (error,) = counts.errors
    assert "has no offset 1000000 (any more), so whether its copy is there cannot be told" in error
    assert redrive(site, tmp_path / "ledger", letters=found[1:]).unmet == 1
    again = redrive(site, tmp_path / "ledger", resend_unknown=True)
    assert again.outcomes == {"done_before": COUNT - 1, "sent": 1}


def test_a_letter_that_names_no_topic(site: SyncBroker, tmp_path: Path) -> None:
    with closing(connect(site)) as client:
        letter = letters_of(client)[0]._replace(properties={})
    counts = redrive(site, tmp_path / "ledger", letters=[letter])
    assert counts.outcomes == {"no_topic": 1}
    assert copies(site) == []


def test_a_topic_that_is_gone_is_not_made_again(site: SyncBroker, tmp_path: Path) -> None:
    with Client(site.namesrv_addr) as client, Admin(client=client) as admin:
        admin.delete_topic("orders")
    counts = redrive(site, tmp_path / "ledger")
    assert counts.outcomes == {"failed": COUNT}
    (error,) = counts.errors
    assert "no route to topic orders" in error


def test_after_many_failures_the_rest_is_left(site: SyncBroker, tmp_path: Path) -> None:
    with closing(connect(site)) as client:
        (letter, *_) = letters_of(client)
    many = [
        letter._replace(key=letter.key._replace(queue_offset=1000 + number))
        for number in range(200)
    ]
    site.faults.fail(RequestCode.SEND_MESSAGE, None, ResponseCode.SERVICE_NOT_AVAILABLE)
    counts = redrive(site, tmp_path / "ledger", letters=many)
    assert counts.gave_up
    assert GIVE_UP_AFTER <= counts.outcomes["failed"] < 200
    summary = summarise_redrive(
        counts, RedriveOptions(GROUP, dry_run=False), Location.parse(str(tmp_path / "ledger"))
    )
    assert summary.exit_code == 1
    assert "the rest is left for another run" in summary.as_text()


def test_a_topic_that_only_takes_writes_is_told(site: SyncBroker) -> None:
    with closing(connect(site)) as client:
        assert check_readable(client, GROUP)
        assert not check_readable(client, "nobody")
        with Client(site.namesrv_addr) as app, Admin(client=app) as admin:
            admin.update_topic(dlq_topic(GROUP), perm="W")
            with pytest.raises(Exception, match=r"mqadmin updateTopicPerm .* '%DLQ%billing' -p 6"):
                check_readable(client, GROUP)
            admin.update_topic(dlq_topic(GROUP), perm="RW")
        assert check_readable(client, GROUP)


def test_the_ledger_is_in_one_place_for_a_cluster_and_group(
    site: SyncBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for folder in (tmp_path / "here", tmp_path / "there"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        with closing(connect(site)) as client:
            path = ledger_place(client, RedriveOptions(GROUP), JobSettings()).path
        assert path is not None
        make_folder(path.parent)
        outcome = "sent" if folder.name == "here" else "done_before"
        assert redrive(site, path).outcomes == {outcome: COUNT}
    assert path == tmp_path / "state/skylarkmq/redrive/DefaultCluster/billing.jsonl"
    assert len(copies(site)) == COUNT
    with closing(connect(site)) as client:
        for mine in (str(tmp_path / "mine"), "s3://bucket/mine"):
            place = ledger_place(client, RedriveOptions(GROUP, ledger=mine), JobSettings())
            assert str(place) == mine


def test_letters_of_several_clusters_need_a_named_ledger(
    site: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(connect(site)) as client:
        known = client.clusters()
        assert set(known.values()) == {"DefaultCluster"}
        route = client.route(dlq_topic(GROUP))
        both = replace(route, brokers={**route.brokers, "elsewhere": {0: "x:1"}})
        monkeypatch.setattr(client, "route", lambda topic: both)
        monkeypatch.setattr(client, "clusters", lambda: {**known, "elsewhere": "Other"})
        with pytest.raises(JobError, match=r"several clusters \(DefaultCluster, Other\)"):
            ledger_place(client, RedriveOptions(GROUP), JobSettings())


def test_a_name_server_without_brokers_is_no_group_without_letters(
    site: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(connect(site)) as client:
        monkeypatch.setattr(client, "clusters", dict)
        with pytest.raises(RouteNotFound, match="No broker is registered with name server 127"):
            check_readable(client, "nobody")


def test_within_a_namespace(tmp_path: Path) -> None:
    with run_broker_sync() as broker:
        broker.create_topic("acme%orders", 1)
        with Client(broker.namesrv_addr, namespace="acme") as client:
            with Producer(client=client) as producer:
                producer.send(Message("orders", b"x"))
            give_up(client, 1)
        with (
            closing(connect(broker, namespace="acme")) as blocking,
            RedriveLedger(Location.parse(str(tmp_path / "ledger")), GROUP) as ledger,
        ):
            driver = Redriver(blocking, ledger, dry_run=False)
            driver.run(letters_of(blocking), lambda done: None)
        assert driver.counts.topics == {("orders", "sent"): 1}
        assert [message.body for message in broker.messages("acme%orders")] == [b"x", b"x"]
        (entry,) = driver._ledger.entries.values()
        assert entry.target == MessageQueue("orders", entry.key.broker_name, 0)
