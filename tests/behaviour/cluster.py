"""The clusters that the behaviour suite runs over, as its tests see them."""

from __future__ import annotations

import itertools
import re
from typing import Any, Final, TypeVar

import pytest

from skylarkmq.client import Client
from skylarkmq.client.errors import broker_error
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import AUTO_CREATE_TOPIC_KEY_TOPIC
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.topic import CreateTopicRequestHeader
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.interop.servers import Broker
from tests.support.patience import LIMIT_S, until

T = TypeVar("T")

"""A limit for what would never end, not an expectation."""
POLL_S: Final = 0.05
QUEUES: Final = 4
READ_WRITE: Final = 6

SKYLARKMQ: Final = "skylarkmq"
APACHE_4: Final = "apache49"
APACHE_5: Final = "apache53"

FEATURES: Final = {
    # Any delay up to days: Message(delay=timedelta) and Message(deliver_at=datetime).
    "timers": {SKYLARKMQ, APACHE_5},
    # Headers as msgpack between our own ends.
    "msgpack": {SKYLARKMQ},
    # Pulls of more than 32 messages or 256 KiB by `maxMsgBytes`, for ours and 5.x.
    "big_pulls": {SKYLARKMQ, APACHE_5},
    # Pop consumption, for SimpleConsumer; RocketMQ has it since 5.0.
    "pop": {SKYLARKMQ, APACHE_5},
    # Members of a group pull, or they pop.
    "one_mode": {SKYLARKMQ},
    # What every cluster of the suite has, so that a test can name what it is about.
    "sql92": {SKYLARKMQ, APACHE_4, APACHE_5},
    "transactions": {SKYLARKMQ, APACHE_4, APACHE_5},
    "request_reply": {SKYLARKMQ, APACHE_4, APACHE_5},
    "trace": {SKYLARKMQ, APACHE_4, APACHE_5},
    # Ours alone starts in less than a second: a test may have one for itself.
    "quick_start": {SKYLARKMQ},
}


class Cluster:
    """A broker `broker-a` with its name server, shared by all tests: each test uses names of its
    own (`unique`).

    Delay levels: 1 is one second, 2 two, all others, and so every retry, one second.
    """

    def __init__(self, kind: str, broker: Broker, test: str) -> None:
        self.kind = kind
        self.broker = broker
        self._test = test
        self._numbers = itertools.count()

    @property
    def namesrv(self) -> str:
        """`host:port` of the name server."""
        return self.broker.namesrv

    @property
    def address(self) -> str:
        """`host:port` of the broker."""
        return f"127.0.0.1:{self.broker.port}"

    @property
    def is_ours(self) -> bool:
        return self.kind == SKYLARKMQ

    def has(self, feature: str) -> bool:
        """Whether this kind of cluster has a feature; a KeyError for an unknown name."""
        return self.kind in FEATURES[feature]

    def needs(self, feature: str) -> None:
        """Skip the test where the feature is missing."""
        if not self.has(feature):
            pytest.skip(f"{self.kind} has no {feature}")

    def unique(self, prefix: str) -> str:
        """Return a name for a topic or group that no other test uses."""
        return f"{prefix}_{self._test}_{next(self._numbers)}"

    def client(self, **settings: Any) -> Client:
        """Return a client, not started, that finds changes within a second."""
        return Client(self.namesrv, **{"heartbeat_interval": 1.0, "route_refresh": 1.0, **settings})

    async def create_topic(
        self, client: Client, topic: str, *, queues: int = QUEUES, order: bool = False
    ) -> None:
        """Create a topic and return when the name server tells clients of all its queues."""
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=READ_WRITE,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
        )
        request = RemotingCommand.request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, encode_fields(header)
        )
        answer = await services_of(client).remoting.call(self.address, request, LIMIT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, self.address)

        async def known() -> bool:
            route = await services_of(client).routes.refresh(topic)
            return route is not None and len(route.publish_queues) == queues

        await until(known, f"the route of {topic}")


def test_name(request: pytest.FixtureRequest) -> str:
    """File and test, as far as a name goes: a group has at most 120 characters, %RETRY% is more."""
    text = f"{request.path.stem}_{request.node.name}".replace("test_", "")
    return re.sub(r"[^A-Za-z0-9]+", "_", text)[:90]
