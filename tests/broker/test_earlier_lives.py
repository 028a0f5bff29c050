"""Offsets of an earlier life of the log: who is sent on, who is let through."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.groups import earlier_lives
from skylarkmq.broker.groups.earlier_lives import SETTLED_S, EarlierLives
from skylarkmq.broker.metrics.rates import BrokerRates
from skylarkmq.broker.metrics.windows import StatsWindows
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.processor.admin.stats import AdminStatsProcessor
from skylarkmq.broker.processor.consumer_manage import ConsumerManageProcessor
from skylarkmq.broker.processor.query import QueryConsumeQueueProcessor, QueryProcessor
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.pull import decode_pull_header
from skylarkmq.protocol.host_address import HostAddress
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request
from tests.support.fake_transport import Owner, connect
from tests.support.raw_client import pull_fields

QUEUE = ("T", 0)
BY_HEARTBEAT, COMMITS, INLINE, LITE = "0", "1", "4", "20"


class Rig(GroupRig):
    """A queue that ended at 5 when this life began, and at 9 by now; the group stands at 4."""

    def __init__(self) -> None:
        super().__init__()
        self.start()
        for _ in range(5):
            self.put("T")
        self.earlier.begin()
        for _ in range(4):
            self.put("T")
        self.offsets.keep("x", "g", *QUEUE, 4)

    def peer(self, client_id: str = "", **more: str) -> Connection:
        """A connection, of a member if it has a name."""
        connection, _ = connect(Owner())
        if client_id:
            data: dict[str, Any] = {
                "group_name": "g", "consume_type": "CONSUME_PASSIVELY",
                "message_model": "CLUSTERING", "consume_from_where": "",
                "subscription_data_set": [SubscriptionData(topic="T", sub_string="*")],
            }  # fmt: skip
            beat = ConsumerData(**(data | more))
            self.consumers.register(connection, client_id, LanguageCode.JAVA, 1, beat)
        return connection

    def pull(self, peer: Connection, offset: int, flags: str = BY_HEARTBEAT) -> int | None:
        """Where a pull is sent; None: it gets what it wants."""
        fields = pull_fields("T", 0, offset, "g", sysFlag=flags)
        return self.earlier.place_of(peer, decode_pull_header(fields))

    def commits(self, peer: Connection, offset: int) -> bool:
        return self.earlier.may_commit(peer, "g", QUEUE, offset)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_who_lives_on_is_sent_to_where_its_group_stands_and_then_let_through(
    rig: Rig,
) -> None:
    peer = rig.peer("a")
    assert not rig.commits(peer, 8)
    assert rig.pull(peer, 8) == 4
    assert not rig.commits(peer, 8)
    assert rig.commits(peer, 4)
    assert rig.pull(peer, 8) is None, "no client pulls in a circle"
    assert rig.commits(peer, 8)


async def test_who_came_to_its_offset_in_this_life_may_come_back_with_it(rig: Rig) -> None:
    peer = rig.peer("a")
    assert rig.pull(peer, 5) is None
    peer.abort("gone")
    again = rig.peer("a")
    assert rig.commits(again, 8)
    assert rig.pull(again, 8) is None


async def test_who_is_not_ahead_of_its_group_is_let_through(rig: Rig) -> None:
    rig.offsets.keep("x", "g", *QUEUE, 8)
    assert rig.pull(rig.peer("a"), 7) is None


async def test_a_question_is_one_of_a_connection_and_says_nothing_of_another(rig: Rig) -> None:
    asks, lives_on = rig.peer("a"), rig.peer("b")
    rig.earlier.told(asks, *QUEUE, 9)
    assert rig.pull(lives_on, 8) == 4
    assert rig.pull(asks, 9) is None
    where = rig.peer("c")
    rig.earlier.told(where, *QUEUE, 4, "other")
    assert rig.pull(where, 8) == 4
    tool = rig.peer()
    assert not rig.commits(tool, 7)
    rig.earlier.told(tool, *QUEUE, 7)
    assert rig.commits(tool, 7)
    assert not rig.commits(tool, 8)


async def test_a_broadcasting_member_goes_on_where_this_life_began(rig: Rig) -> None:
    assert rig.pull(rig.peer("a", message_model="BROADCASTING"), 8) == 5


async def test_a_pull_before_the_heartbeat_waits_for_it(rig: Rig) -> None:
    member, nobody = rig.peer("a"), rig.peer()
    assert rig.pull(member, 5) is None
    with pytest.raises(RemoteProtocolError) as caught:
        rig.pull(nobody, 8)
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    rig.stats.pulled_by("T", "g")[0] = 8
    with pytest.raises(RemoteProtocolError):
        rig.pull(nobody, 8)
    rig.clock.advance(SETTLED_S)
    assert rig.pull(nobody, 8) is None
    with pytest.raises(RemoteProtocolError):
        rig.pull(rig.peer(), 9)


@pytest.mark.parametrize(
    ("how", "flags", "place"),
    [
        ("CONSUME_ACTIVELY", INLINE, None),
        ("CONSUME_PASSIVELY", INLINE, 4),
        ("CONSUME_ACTIVELY", LITE, 4),
        ("CONSUME_ACTIVELY", str(int(INLINE) | int(COMMITS)), 4),
    ],
)
async def test_who_has_positions_of_its_own_is_let_through(
    rig: Rig, how: str, flags: str, place: int | None
) -> None:
    assert rig.pull(rig.peer("a", consume_type=how), 8, flags) == place


async def test_a_tool_may_read_and_commit(rig: Rig) -> None:
    tool = rig.peer()
    assert rig.pull(tool, 8, INLINE) is None
    assert rig.commits(tool, 8)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}),
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (RequestCode.QUERY_CONSUME_QUEUE, {"topic": "T", "queueId": 0, "index": 0, "count": 1}),
    ],
)
async def test_an_administrator_who_saw_where_a_queue_ends_gives_a_group_its_place(
    rig: Rig, code: int, fields: dict[str, Any]
) -> None:
    """As `mqadmin cloneGroupOffset` does, which asks 208 of a group and tells 15 of another."""
    rig.topic("T", queues=1)
    rig.groups.find("g")
    peer, context = FakeConnection(), rig.context
    place = {"consumerGroup": "other", "topic": "T", "queueId": 0, "commitOffset": 9}
    commit = request(RequestCode.UPDATE_CONSUMER_OFFSET, place)
    offsets = ConsumerManageProcessor(context)
    assert (await ask(rig, offsets, peer, commit)).code == ResponseCode.SYSTEM_ERROR
    totals = BrokerRates(rig.stats, rig.store.stats, rig.clock)
    windows = StatsWindows(rig.stats, rig.store.stats, totals, "C", rig.clock)
    filters = ConsumerFilterManager(rig.config, rig.clock)
    shows = [
        QueryProcessor(context),
        AdminStatsProcessor(context, windows, rig.stats, HostAddress("192.0.2.7", 1).pack()),
        QueryConsumeQueueProcessor(context, filters),
    ]
    one = next(each for each in shows if code in each.handlers())
    assert (await ask(rig, one, peer, request(code, fields))).code == ResponseCode.SUCCESS
    assert (await ask(rig, offsets, peer, commit)).code == ResponseCode.SUCCESS
    assert (await ask(rig, offsets, FakeConnection(), commit)).code == ResponseCode.SUCCESS
    assert rig.offsets.query("other", *QUEUE) == 9


async def test_a_topic_that_is_made_anew_begins_at_0(rig: Rig) -> None:
    peer = rig.peer("a")
    assert rig.pull(peer, 5) is None
    rig.earlier.forget_topic("T")
    rig.offsets.remove_topic("T")
    assert rig.pull(peer, 4) == 0


async def test_a_slave_sends_nobody_on_and_a_new_master_knows_nobody(rig: Rig) -> None:
    peer = rig.peer("a")
    rig.store.follows = True
    assert rig.pull(peer, 8) is None
    rig.store.follows = False
    rig.earlier.begin()
    rig.put("T")
    assert rig.pull(peer, 10) == 4


async def test_what_is_remembered_has_a_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(earlier_lives, "KNOWN_MAX", 2)
    monkeypatch.setattr(earlier_lives, "ASKED_MAX", 1)
    for topic in ("U", "T"):
        rig.earlier.told(peer := rig.peer(), topic, 0, 9)
    assert rig.pull(rig.peer("a"), 8) == 4
    assert rig.pull(rig.peer("b"), 8) == 4
    assert "2 places of consumers are known" in caplog.text
    assert rig.pull(rig.peer("c"), 8) is None
    assert rig.commits(peer, 8)


async def test_before_its_beginning_everybody_is_let_through() -> None:
    rig = GroupRig().start()
    peer = connect(Owner())[0]
    assert isinstance(rig.earlier, EarlierLives)
    assert rig.earlier.may_commit(peer, "g", QUEUE, 7)
