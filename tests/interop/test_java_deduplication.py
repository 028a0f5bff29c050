"""RocketMQ's Java client and topics with a deduplication window: retries, its tools, its broker."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.sync import Admin
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.testing import run_broker_sync
from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.tools import JavaTools

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]

WINDOW = DeduplicationWindow(600, 1000)


@dataclass
class Somewhere:
    """Where a broker of a test's own can be found."""

    namesrv: str


@pytest.mark.parametrize(
    ("mode", "window", "copies"), [("sync", None, 2), ("sync", WINDOW, 1), ("batch", WINDOW, 1)]
)
def test_a_retry_after_a_lost_answer(
    children: Children, mode: str, window: DeduplicationWindow | None, copies: int
) -> None:
    """The program sends the same messages again, and the client keeps the ids that they have."""
    code = RequestCode.SEND_BATCH_MESSAGE if mode == "batch" else RequestCode.SEND_MESSAGE
    with run_broker_sync() as broker, Admin(namesrv_addr=broker.namesrv_addr) as admin:
        admin.create_topic("orders", queues=4, deduplication=window)
        tools = JavaTools(children, Somewhere(broker.namesrv_addr))
        lost = broker.faults.drop_reply(code)
        (sent,) = tools.produce("orders", mode, 3 if mode == "batch" else 1, first=4000)
        assert (lost.hits, sent.get("status")) == (1, "SEND_OK"), sent
        stored = broker.messages("orders")
        ids = sent["msg_id"].split(",")
        assert sorted(message.unique_key or "" for message in stored) == sorted(ids * copies)
        places = {message.offset_msg_id: message.unique_key for message in stored}
        named = sent["offset_msg_id"].split(",")
        assert [places[each] for each in named] == ids


def test_the_tools_of_4_9_leave_a_window_as_it_is(children: Children, broker: Broker) -> None:
    if not isinstance(broker, SkylarkBroker):
        pytest.skip("its brokers have no windows")
    with Admin(namesrv_addr=broker.namesrv) as admin:
        admin.create_topic("windowed", queues=4, deduplication=WINDOW)
        tool = JavaAdmin(children, broker)
        tool.run("updateTopic", "-t", "windowed", "-b", tool.address, "-r", "8", "-w", "8")
        assert admin.deduplication_windows("windowed") == {broker.name: WINDOW}
        assert [each.write_queues for each in admin.describe_topic("windowed").settings] == [8]


def test_a_4_9_broker_opens_the_store_and_passes_over_the_window(children: Children) -> None:
    folder = children.folder / "shared"
    folder.mkdir()
    theirs, ours = ApacheBroker(children, folder), SkylarkBroker(children, folder)
    ours.start()
    with Admin(namesrv_addr=ours.namesrv) as admin:
        admin.create_topic("orders", queues=4, deduplication=WINDOW)
    JavaTools(children, ours).produce("orders", "sync", 5)
    ours.stop()
    table = json.loads(next(folder.rglob("topics.json")).read_bytes())["topicConfigTable"]
    assert table["orders"]["attributes"]
    theirs.start()
    sent = JavaTools(children, theirs).produce("orders", "sync", 5)
    assert {event["status"] for event in sent} == {"SEND_OK"}
    theirs.stop()
