"""What holds for a topic: the least of what its brokers promise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.topic_attributes import DEDUPLICATION_KEYS, DEDUPLICATION_SECONDS
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing.promises import Promises
from skylarkmq.spark.writing.sink_options import SinkOptions
from tests.spark.support.fake_brokers import FakeClock

SETTINGS = ConnectionSettings(name_servers=("127.0.0.1:9876",))


@dataclass
class Cluster:
    """Brokers of ours that have one topic, each with a window."""

    windows: dict[str, DeduplicationWindow]
    namespace: Namespace = field(default_factory=lambda: Namespace(""))
    settings: ConnectionSettings = SETTINGS
    clock: FakeClock = field(default_factory=FakeClock)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, name, 0) for name in self.windows]

    def master_of(self, queue: MessageQueue) -> str:
        return queue.broker_name

    def call(self, address: str, request: RemotingCommand) -> RemotingCommand:
        window = self.windows[address]
        attributes = {
            DEDUPLICATION_SECONDS: str(window.seconds),
            DEDUPLICATION_KEYS: str(window.keys),
        }
        config = TopicConfig(topic_name="T", attributes=attributes)
        answer = request.reply(0, None, {CODEC_FIELD: CODEC_OFFER})
        answer.body = encode_body(config)
        return answer


def test_of_several_brokers_the_smallest_window_holds() -> None:
    cluster = Cluster({"a": DeduplicationWindow(900, 1000), "b": DeduplicationWindow(600, 5000)})
    promise = Promises(cast(BlockingClient, cluster), SinkOptions(SETTINGS, topic="T")).of("T")
    assert (promise.brokers, promise.why) == (("a", "b"), "")
    assert promise.window == DeduplicationWindow(600, 1000)
