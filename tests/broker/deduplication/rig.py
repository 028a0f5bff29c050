"""What the tests of deduplication windows share: topics with one, sends with a key of their own."""

from __future__ import annotations

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.record import decode_messages
from tests.support.patience import until
from tests.support.raw_client import RawClient, pull_fields, send_fields

TOPIC = "orders"
SEND, BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
SECONDS, KEYS = "skylarkmq.deduplication.seconds", "skylarkmq.deduplication.keys"

Place = tuple[str, str, str]  # queue id, queue offset, offset message id


def window(seconds: int = 60, keys: int = 1000) -> str:
    return f"+{SECONDS}={seconds},+{KEYS}={keys}"


async def make_topic(client: RawClient, topic: str = TOPIC, **more: str) -> RemotingCommand:
    """Create or change a topic; by default it gets a window."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": window(), **more,
    }  # fmt: skip
    return await client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def open_client(
    broker: BrokerController, topic_attributes: str | None = window()
) -> RawClient:
    """Connect, and make the topic if it is to get a window."""
    client = await RawClient.open(broker.listen_address)
    if topic_attributes is not None:
        answer = await make_topic(client, attributes=topic_attributes)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    return client


def fields_of(key: str, queue_id: int = 0, topic: str = TOPIC, **more: str) -> dict[str, str]:
    text = "\x02".join(f"{name}\x01{value}" for name, value in {"UNIQ_KEY": key, **more}.items())
    return send_fields(topic, queue_id, text)


async def send(
    client: RawClient, key: str, body: bytes = b"x", queue_id: int = 0, **more: str
) -> RemotingCommand:
    """Send with a unique key and more properties."""
    return await client.call(SEND, fields_of(key, queue_id, **more), body)


def place(answer: RemotingCommand) -> Place:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    named = answer.ext_fields
    return named["queueId"], named["queueOffset"], named["msgId"]


def count(broker: BrokerController, queue_id: int = 0, topic: str = TOPIC) -> int:
    """How many messages were ever laid out in a queue."""
    queue = broker.parts.store.queues.get(topic, queue_id)
    return 0 if queue is None else queue.next_offset


async def bodies(
    client: RawClient, broker: BrokerController, queue_id: int = 0, topic: str = TOPIC
) -> list[bytes]:
    """The bodies of a queue, once all that was laid out is shown."""
    await until(
        lambda: broker.parts.store.max_offset(topic, queue_id) == count(broker, queue_id, topic)
    )
    read: list[bytes] = []
    while len(read) < count(broker, queue_id, topic):
        fields = pull_fields(topic, queue_id, len(read))
        answer = await client.call(RequestCode.PULL_MESSAGE, fields)
        read += [each.body for each in decode_messages(answer.body)]
    return read


def hits(broker: BrokerController, topic: str = TOPIC) -> int:
    return broker.parts.store.deduplication.windows[topic].hits
