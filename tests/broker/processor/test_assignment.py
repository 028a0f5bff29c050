"""What consumers receive from, when they leave that to the broker: queues to pop, or to pull."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.processor.admin.group import AdminGroupProcessor
from skylarkmq.broker.processor.assignment import AssignmentProcessor
from skylarkmq.broker.replication.metadata.metadata_tables import GroupRows
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionGroupConfig
from skylarkmq.protocol.bodies.pop import (
    MessageRequestModeBody,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from skylarkmq.protocol.bodies.route import QueueData, TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import PermName
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request

GROUP, TOPIC = "G", "T"
OTHER = TopicRouteData(
    broker_datas=[],
    queue_datas=[QueueData(broker_name="other", perm=6, read_queue_nums=2, write_queue_nums=2)],
)


class Rig(GroupRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.routes: list[TopicRouteData | None] = []
        self.find: Callable[[str], Any] | None = self.known
        self.withheld = 0
        self.processor = AssignmentProcessor(self.context, lambda: self.find, self.client_view)
        self.peer = FakeConnection()

    def client_view(self, topic: TopicConfig) -> TopicConfig:
        return msgspec.structs.replace(topic, perm=topic.perm & ~self.withheld)

    async def known(self, _: str) -> list[TopicRouteData | None]:
        return self.routes

    async def set_mode(self, mode: str, **changes: Any) -> RemotingCommand:
        values: dict[str, Any] = {"topic": TOPIC, "consumer_group": GROUP, "mode": mode, **changes}
        body = encode_body(MessageRequestModeBody(**values))
        return await ask(self, self.processor, self.peer, request(401, body=body))

    async def query(self, client: str = "c0", **changes: Any) -> list[tuple[str, int, str]] | None:
        values: dict[str, Any] = {
            "topic": TOPIC, "consumer_group": GROUP, "client_id": client, "strategy_name": "AVG",
            **changes,
        }  # fmt: skip
        body = encode_body(QueryAssignmentRequestBody(**values))
        answer = await ask(self, self.processor, self.peer, request(400, body=body))
        assert answer.code == 0, answer.remark
        found = decode_body(QueryAssignmentResponseBody, answer.body).message_queue_assignments
        if found is None:
            return None
        queues = [(each.message_queue, each.mode) for each in found]
        return [(queue.broker_name, queue.queue_id, mode) for queue, mode in queues]

    def join(self, *names: str, consume_type: str = "CONSUME_PASSIVELY") -> None:
        for name in names:
            data = ConsumerData(
                consume_from_where="CONSUME_FROM_LAST_OFFSET",
                consume_type=consume_type,
                group_name=GROUP,
                message_model="CLUSTERING",
            )
            peer: Any = FakeConnection(name)
            self.consumers.register(peer, name, LanguageCode.JAVA, 479, data)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic(TOPIC, 4)
    return rig


async def test_a_group_that_pops_gets_every_broker(rig: Rig) -> None:
    assert (await rig.set_mode("POP")).code == 0
    assert await rig.query() == [("broker-a", -1, "POP")]
    rig.routes = [OTHER, None]
    assert await rig.query() == [("broker-a", -1, "POP"), ("other", -1, "POP")]
    assert await rig.query(topic="%RETRY%G") == [], "a pop looks there by itself"
    assert await rig.query(topic="unknown", consumer_group="H") is None
    rig.find = None
    assert await rig.query() == [("broker-a", -1, "POP")]


@pytest.mark.parametrize("mode", ["POP", "PULL"])
async def test_who_is_to_go_is_not_sent_back_here(rig: Rig, mode: str) -> None:
    assert (await rig.set_mode(mode)).code == 0
    rig.join("c0")
    rig.routes = [OTHER]
    rig.withheld = PermName.PERM_READ
    assert {name for name, _, _ in await rig.query() or []} == {"other"}
    rig.withheld = 0
    assert {name for name, _, _ in await rig.query() or []} == {"broker-a", "other"}


async def test_the_mode_is_on_the_disk_and_stays_when_the_group_is_changed(rig: Rig) -> None:
    assert (await rig.set_mode("POP")).code == 0
    file = rig.store.paths.config / "subscriptionGroup.json"
    assert b'"messageRequestMode":"POP"' in rig.files.read_all(file)
    rows = dict(GroupRows(rig.groups).taken())
    assert rows[GROUP].pops, "it goes over to a successor with its group"
    body = encode_body(SubscriptionGroupConfig(group_name=GROUP, retry_max_times=3))
    admin = AdminGroupProcessor(rig.context, *[None] * 3)  # type: ignore[arg-type]
    assert (await ask(rig, admin, rig.peer, request(200, body=body))).code == 0
    config = rig.groups.table[GROUP]
    assert (config.pops, config.retry_max_times) == (True, 3)
    assert (await rig.set_mode("PULL")).code == 0
    assert not rig.groups.table[GROUP].pops


async def test_those_who_pull_divide_the_queues(rig: Rig) -> None:
    rig.join("c0", "c1", "c2")
    shares = [await rig.query(f"c{number}") for number in range(3)]
    assert shares == [
        [("broker-a", 0, "PULL"), ("broker-a", 1, "PULL")],
        [("broker-a", 2, "PULL")],
        [("broker-a", 3, "PULL")],
    ]
    circle = [await rig.query(f"c{number}", strategy_name="AVG_BY_CIRCLE") for number in range(3)]
    assert circle[0] == [("broker-a", 0, "PULL"), ("broker-a", 3, "PULL")]
    rig.routes = [OTHER]
    every = [queue for number in range(3) for queue in await rig.query(f"c{number}") or []]
    assert len(set(every)) == 6


async def test_what_cannot_be_told_changes_nothing(rig: Rig) -> None:
    assert await rig.query() is None, "no member of that id"
    rig.join(*[f"c{number}" for number in range(5)])
    assert await rig.query("c4") == [], "a share without a queue"
    assert await rig.query(strategy_name="CONFIG") is None
    assert await rig.query(topic="unknown") is None


async def test_members_that_pop_decide_too(rig: Rig) -> None:
    rig.join("c0", consume_type="CONSUME_POP")
    assert await rig.query() == [("broker-a", -1, "POP")]


async def test_a_group_that_is_to_pop_is_not_pulled(rig: Rig) -> None:
    rig.join("c0")
    rig.consumers.check_mode(GROUP, pops=False)
    assert (await rig.set_mode("POP")).code == 0
    with pytest.raises(RemoteProtocolError, match="pop its messages"):
        rig.consumers.check_mode(GROUP, pops=False)
    rig.consumers.check_mode(GROUP, pops=True)
    rig.join("c1")
    assert rig.consumers.pops(GROUP)


@pytest.mark.parametrize(("mode", "changes", "code"), [
    ("POP", {"topic": "%RETRY%G"}, 16),
    ("PUSH", {}, 29),
    ("POP", {"topic": "no topic!"}, 1),
    ("POP", {"consumer_group": "no group!"}, 1),
])  # fmt: skip
async def test_what_cannot_be_meant_is_refused(
    rig: Rig, mode: str, changes: Any, code: int
) -> None:
    assert (await rig.set_mode(mode, **changes)).code == code
    assert GROUP not in rig.groups.table


async def test_a_group_is_not_made_where_that_is_switched_off() -> None:
    rig = Rig(auto_create_subscription_group=False)
    rig.start()
    assert (await rig.set_mode("POP")).code == 26
