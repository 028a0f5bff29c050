"""RocketMQ's Java client keeps a trace of what it sends, consumes and decides."""

from __future__ import annotations

import pytest

from tests.interop.admin_tools import JavaAdmin
from tests.interop.children import Child
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools

pytestmark = pytest.mark.interop

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
FIELD, RECORD = "\x01", "\x02"


def records_of(tracer: Child, msg_id: str) -> list[list[str]]:
    """What the trace topic has of a message, a list of fields each."""
    records = []
    for event in tracer.named("message"):
        for record in event["body"].split(RECORD):
            fields = record.split(FIELD)
            if msg_id in fields:
                assert msg_id in event["keys"].split()
                records.append(fields)
    return records


def traced(tracer: Child, msg_id: str, *kinds: str) -> dict[str, list[str]]:
    """Wait until a message has records of these kinds; the last of each."""

    def look() -> dict[str, list[str]] | None:
        found = {record[0]: record for record in records_of(tracer, msg_id)}
        return found if {*kinds} <= {*found} else None

    found: dict[str, list[str]] = tracer.wait_for(f"a trace of {kinds}", look)
    return found


def test_a_message_sent_and_consumed(
    tools: JavaTools, broker: Broker, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    producer = tools.start_produce(topic, "sync", 1, tags="A", trace="true")
    producer.event("done")
    (sent,) = producer.named("sent")
    assert sent["trace_on"]
    assert sent["region_id"] == "DefaultRegion"
    consumer = tools.consume(topic, group, trace="true")
    tracer = tools.consume(TRACE_TOPIC, f"{group}_of_traces")
    found = traced(tracer, sent["msg_id"], "Pub", "SubBefore", "SubAfter")
    for child in (producer, consumer, tracer):
        child.finish()  # not earlier: Java's client may lose its last traces when it ends

    _, _, region, group_of_producer, its_topic, msg_id, tags, keys, host, size = found["Pub"][:10]
    assert (region, group_of_producer, its_topic) == ("DefaultRegion", "P_interop", topic)
    assert (msg_id, tags, keys, size) == (sent["msg_id"], "A", "m-key-0", "3")
    assert host == f"127.0.0.1:{broker.port}"
    assert found["Pub"][11:14] == ["0", sent["offset_msg_id"], "true"]
    assert found["SubBefore"][3] == group
    request_id = found["SubBefore"][4]
    assert found["SubBefore"][5:7] == [sent["msg_id"], "0"]
    assert found["SubAfter"][1:3] == [request_id, sent["msg_id"]]
    assert found["SubAfter"][4] == "true"


def test_a_transaction(tools: JavaTools, topic: str, group: str) -> None:
    producer = tools.transact(topic, f"P_{topic}", count=1, local="unknown", trace="true")
    (sent,) = producer.named("sent")
    producer.event("check")
    tracer = tools.consume(TRACE_TOPIC, group)
    found = traced(tracer, sent["msg_id"], "Pub", "EndTransaction")
    producer.finish()
    tracer.finish()
    assert found["Pub"][11] == "1"  # a half message
    kinds = [fields for fields in records_of(tracer, sent["msg_id"]) if fields[0] != "Pub"]
    assert {fields[0] for fields in kinds} == {"EndTransaction"}
    state, by_check = kinds[-1][11:13]
    assert (state, by_check) in {("UNKNOW", "false"), ("COMMIT_MESSAGE", "true")}


def test_mqadmin_shows_a_trace(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    producer = tools.start_produce(topic, "sync", 1, trace="true")
    producer.event("done")
    (sent,) = producer.named("sent")
    consumer = tools.consume(topic, group, trace="true")

    def shown() -> str:
        text = admin.run("queryMsgTraceById", "-i", sent["msg_id"])
        return text if "Pub" in text and group in text else ""

    admin.until("the trace", shown)
    producer.finish()
    consumer.finish()


@pytest.mark.parametrize("own_broker", [{"traceOn": "false"}], indirect=True)
def test_a_broker_may_ask_for_none(own_tools: JavaTools, topic: str) -> None:
    own_tools.queues(topic, create=1)
    (sent,) = own_tools.produce(topic, "sync", 1, trace="true")
    assert not sent["trace_on"]
    own_tools.produce(topic, "sync", 1, prefix="late", trace="true")
    assert {queue["max_offset"] for queue in own_tools.queues(TRACE_TOPIC)} == {0}
