"""Registration: what is said to whom and when, and that failures only cost a log line."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.access import outgoing
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig, parse_namesrv_addresses
from skylarkmq.broker.namesrv.built_in import BuiltInNamesrv
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.registration.registration import RegisteredRole, Registration
from skylarkmq.broker.registration.service import RegistrationService
from skylarkmq.broker.replication.ha.master_address import MasterAddress
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.crc import body_crc
from skylarkmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    KVTable,
    RegisterBrokerBody,
    decode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import DataVersion, decode_body, encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.remoting.errors import ConnectionFailed, RequestTimeout, TlsError
from skylarkmq.store.config import StoreConfig
from tests.support.manual_clock import ManualClock, advance_async, settle
from tests.support.memory_files import Tables

CONFIG = BrokerConfig(
    store=StoreConfig(store_path_root_dir=Path("/store")),
    broker_name="broker-a",
    namesrv_addr="ns1:9876",
)
ADDRESS = "10.0.0.1:10911"
REMOTE = "127.0.0.1:5000"
SYSTEM_TOPIC_COUNT = 8


class _Channel:
    """A name server that answers as the test says: a code, an error, or (None) not at all."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: list[RemotingCommand] = []
        self.timeouts_s: list[float] = []
        self.outcome: int | Exception | None = 0
        self.changed = "true"
        self.master: dict[str, str] = {}
        self.is_open = True
        self.order_table: dict[str, str] | None = None
        self.body = b""
        self.remark = ""
        self.brokers: dict[int, str] = {}  # of our name, as it tells them
        self.look_count = 0

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO and self.outcome == 0:
            self.look_count += 1
            broker = BrokerData(broker_addrs=self.brokers, broker_name="broker-a")
            cluster = ClusterInfo(broker_addr_table={"broker-a": broker})
            return command.reply(ResponseCode.SUCCESS, body=encode_body(cluster))
        self.requests.append(command)
        self.timeouts_s.append(timeout_s)
        if self.outcome is None:
            await asyncio.Event().wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        table = self.order_table
        body = self.body if table is None else encode_body(KVTable(table=table))
        fields = {"changed": self.changed, **self.master}
        return command.reply(self.outcome, self.remark, ext_fields=fields, body=body)

    def codes(self) -> list[int]:
        return [request.code for request in self.requests]

    def topics(self, index: int = -1) -> set[str]:
        body = decode_body(RegisterBrokerBody, self.requests[index].body)
        return set(body.topic_config_serialize_wrapper.topic_config_table)


def _nothing(address: str) -> None:
    """Nobody listens yet."""


class _Remoting:
    """Connections to name servers; stands for a `RemotingClient`."""

    def __init__(self, channels: dict[str, _Channel]) -> None:
        self.channels = channels
        self.is_stopped = False
        self.on_lost: Callable[[str], None] = _nothing

    def lose(self, address: str) -> None:
        """The connection to an address ends."""
        self.channels[address].is_open = False
        self.on_lost(address)

    def ready(self, address: str) -> _Channel | None:
        channel = self.channels[address]
        return channel if channel.is_open else None

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        return await self.channels[address].call(command, timeout_s)

    async def stop(self) -> None:
        self.is_stopped = True


class Setup:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.clock = ManualClock()
        self.config = config = dataclasses.replace(CONFIG, **changes)
        addresses = parse_namesrv_addresses(config.namesrv_addr)
        self.channels = {address: _Channel(address) for address in addresses}
        self.remoting = _Remoting(self.channels)
        monkeypatch.setattr(outgoing, "RemotingClient", self._connect)
        tables = Tables()
        self.topics = TopicConfigManager(config, tables.files, tables.writer, self.clock)
        self.topics.load()
        self.namesrv = NamesrvController(NamesrvConfig(listen_port=0), self.clock)
        self.master = MasterAddress(config)
        self.service = RegistrationService(
            Registration(config, self.topics, ADDRESS),
            self.topics,
            self.clock,
            BuiltInNamesrv(lambda _: self.namesrv, self.clock),
            master=self.master,
        )

    def _connect(self, *_: Any, on_lost: Callable[[str], None], **__: Any) -> _Remoting:
        self.remoting.on_lost = on_lost
        return self.remoting

    @property
    def channel(self) -> _Channel:
        return self.channels["ns1:9876"]

    async def start(self) -> None:
        await self.service.start()
        await settle()

    async def create(self, topic: str) -> None:
        self.topics.create_in_send(topic, "TBW102", 4, REMOTE)
        await settle()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()


async def test_the_start_registers_all_topics_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    await setup.start()
    for channel in setup.channels.values():
        (request,) = channel.requests
        assert request.code == RequestCode.REGISTER_BROKER
        assert request.ext_fields == {
            "brokerName": "broker-a",
            "brokerAddr": ADDRESS,
            "clusterName": "DefaultCluster",
            "haServerAddr": "10.0.0.1:10912",
            "brokerId": "0",
            "compressed": "false",
            "bodyCrc32": str(body_crc(request.body)),
        }
        assert len(channel.topics()) == SYSTEM_TOPIC_COUNT
        assert channel.timeouts_s == [6.0]
    assert len(setup.namesrv.routes.topics()) == SYSTEM_TOPIC_COUNT
    await setup.service.stop()


async def test_a_new_topic_is_known_here_at_once_and_elsewhere_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    setup.topics.create_in_send("orders", "TBW102", 4, REMOTE)
    assert setup.namesrv.routes.topic_route("orders") is not None
    setup.topics.create_in_send("flights", "TBW102", 4, REMOTE)
    await settle()
    assert len(setup.channel.requests) == 2
    assert setup.channel.topics() == {"orders", "flights"}
    await setup.service.stop()


async def test_a_whole_registration_has_the_bytes_of_its_body_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    await settle()
    sent = setup.channels["ns1:9876"].requests[-1]
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            data_version=setup.topics.data_version, topic_config_table=setup.topics.table
        )
    )
    assert sent.body == encode_body(body)
    assert sent.ext_fields["bodyCrc32"] == str(body_crc(sent.body))


async def test_all_topics_go_out_at_every_period(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    await setup.advance(29.9)
    assert len(setup.channel.requests) == 1
    await setup.advance(0.2)
    assert len(setup.channel.requests) == 2
    assert len(setup.channel.topics()) == SYSTEM_TOPIC_COUNT
    await setup.service.stop()
    setup.namesrv.routes.stop()
    assert setup.clock.pending_count == 0


@pytest.mark.parametrize(("asked_ms", "used_s"), [(1, 10), (20_000, 20), (600_000, 60)])
async def test_the_period_stays_within_limits(
    monkeypatch: pytest.MonkeyPatch, asked_ms: int, used_s: float
) -> None:
    setup = Setup(monkeypatch, register_name_server_period=asked_ms)
    await setup.start()
    await setup.advance(used_s - 0.1)
    assert len(setup.channel.requests) == 1
    await setup.advance(0.2)
    assert len(setup.channel.requests) == 2
    await setup.service.stop()


async def test_the_built_in_name_server_never_takes_us_for_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    setup.namesrv.routes.start()
    await setup.start()
    for _ in range(10):
        await setup.advance(60)
    assert setup.namesrv.routes.topics()
    setup.namesrv.routes.stop()
    await setup.service.stop()


async def test_failures_cost_a_line_a_minute_and_then_all_topics_go_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(monkeypatch, register_name_server_period=10_000)
    setup.channel.outcome = ConnectionFailed("ns1:9876", "nobody listens")
    with caplog.at_level(logging.WARNING):
        await setup.start()
        await setup.create("orders")
        for _ in range(5):
            await setup.advance(10)
        assert len([r for r in caplog.records if "ns1:9876" in r.message]) == 1
        assert "nobody listens" in caplog.text
        await setup.advance(10)
        assert len([r for r in caplog.records if "ns1:9876" in r.message]) == 2
    setup.channel.outcome = 1
    await setup.advance(10)
    setup.channel.outcome = 0
    await setup.create("flights")
    assert len(setup.channel.topics()) == SYSTEM_TOPIC_COUNT + 2
    await setup.service.stop()


async def test_a_slow_name_server_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    setup.channel.outcome = None
    await setup.start()
    await setup.create("orders")
    assert len(setup.channel.requests) == 1
    assert setup.channels["ns2:9876"].topics() == {"orders"}
    setup.channel.outcome = 0
    await setup.service.stop()
    assert setup.remoting.is_stopped
    assert setup.channel.codes() == [RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER], (
        "a registration whose answer is out may have arrived"
    )


async def test_the_stop_says_good_bye_where_we_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    setup.channels["ns2:9876"].outcome = ConnectionFailed("ns2:9876", "nobody listens")
    await setup.start()
    await setup.service.stop()
    assert setup.channel.codes() == [RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER]
    assert setup.channel.requests[1].ext_fields == {
        "brokerName": "broker-a",
        "brokerAddr": ADDRESS,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
    }
    assert setup.channels["ns2:9876"].codes() == [RequestCode.REGISTER_BROKER]
    assert setup.remoting.is_stopped
    assert setup.namesrv.routes.topics() == []
    await setup.create("late")
    assert setup.namesrv.routes.topics() == []


async def test_whether_clients_can_find_us(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch)
    assert setup.service.why_unknown == "", "the built-in name server always knows"
    alone = RegistrationService(
        Registration(CONFIG, setup.topics, ADDRESS), setup.topics, setup.clock
    )
    assert "no name server" in alone.why_unknown
    await alone.start()
    await settle()
    assert alone.why_unknown == ""
    await alone.stop()


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_start_waits_until_clients_can_find_us_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    setup = Setup(monkeypatch)
    setup.channel.outcome = ConnectionFailed("ns1:9876", "refused")
    registration = Registration(CONFIG, setup.topics, ADDRESS)
    alone = RegistrationService(registration, setup.topics, setup.clock)
    await alone.start()
    known = asyncio.ensure_future(alone.known(3.0))
    await settle()
    assert not known.done()
    if is_answered:
        setup.channel.outcome = 0
    await advance_async(setup.clock, 1.5)
    assert known.done() == is_answered
    await advance_async(setup.clock, 1.6)
    assert known.done()
    await alone.stop()


async def test_without_force_the_version_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, force_register=False)
    await setup.start()
    assert setup.channel.codes() == [RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER]
    version = decode_body(DataVersion, setup.channel.requests[0].body)
    assert version == setup.topics.data_version
    setup.channel.changed = "false"
    await setup.advance(31)
    assert setup.channel.codes()[2:] == [RequestCode.QUERY_DATA_VERSION]
    await setup.create("orders")
    assert setup.channel.codes()[3:] == [RequestCode.REGISTER_BROKER]
    assert setup.channel.topics() == {"orders"}
    await setup.service.stop()


async def test_a_compressed_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, compressed_register=True)
    await setup.start()
    (request,) = setup.channel.requests
    assert request.ext_fields["compressed"] == "true"
    assert request.ext_fields["bodyCrc32"] == str(body_crc(request.body))
    body = decode_compressed_registration(request.body)
    table = body.topic_config_serialize_wrapper.topic_config_table
    assert table["TBW102"].perm == 7 and len(table) == SYSTEM_TOPIC_COUNT
    await setup.service.stop()


async def test_a_restricted_broker_restricts_all_its_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch, broker_permission=4, broker_ip2="10.9.9.9")
    await setup.start()
    body = decode_body(RegisterBrokerBody, setup.channel.requests[0].body)
    table = body.topic_config_serialize_wrapper.topic_config_table
    assert {topic.perm for topic in table.values()} == {4}
    assert setup.topics.table["TBW102"].perm == 7
    assert setup.channel.requests[0].ext_fields["haServerAddr"] == "10.9.9.9:10912"
    await setup.service.stop()


async def test_a_name_server_that_came_back_is_told_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    await setup.create("Before")
    assert setup.channel.topics() == {"Before"}
    setup.channel.is_open = False  # it went, and forgot us
    await setup.create("After")
    assert setup.channel.topics() >= {"Before", "After"}
    assert len(setup.channel.topics()) == SYSTEM_TOPIC_COUNT + 2


async def test_the_built_in_name_server_is_told_everything_after_it_dropped_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    await setup.start()
    await setup.create("Before")
    setup.namesrv.routes.unregister(
        "broker-a", ADDRESS, None
    )  # as after a long stop of the process
    await setup.create("After")
    await setup.advance(60)
    assert set(setup.namesrv.routes.topics()) >= {"Before", "After"}


@pytest.mark.parametrize(
    ("failure", "tries"),
    [
        pytest.param(ConnectionFailed("ns1:9876", "refused"), [1, 3, 7, 12, 17, 22], id="away"),
        pytest.param(RequestTimeout("no answer"), [1, 3, 7, 15], id="silent"),
        pytest.param(
            ConnectionFailed("ns1:9876", "it closed", reached=True), [1, 3, 7, 15], id="hangs up"
        ),
        pytest.param(TlsError("ns1:9876", "no issuer"), [1, 3, 7, 15], id="certificate"),
    ],
)
async def test_a_name_server_that_does_not_answer_is_tried_more_and_more_rarely(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, tries: list[int]
) -> None:
    setup = Setup(monkeypatch)
    setup.channel.outcome = failure
    await setup.start()
    tried = []
    for second in range(1, 26):
        await setup.advance(1)
        if len(setup.channel.requests) > len(tried) + 1:
            tried.append(second)
    assert tried == tries
    setup.channel.outcome = 0
    await setup.advance(15)
    assert setup.service.why_unknown == ""
    setup.channel.requests.clear()
    await setup.advance(29)
    assert len(setup.channel.requests) <= 1, "from now on at the period alone"
    await setup.service.stop()
    setup.namesrv.routes.stop()
    assert setup.clock.pending_count == 0


async def test_a_name_server_whose_connection_ends_is_told_everything_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    await setup.start()
    setup.remoting.lose("ns1:9876")
    await settle()
    assert [len(channel.requests) for channel in setup.channels.values()] == [2, 1]
    assert len(setup.channel.topics()) == SYSTEM_TOPIC_COUNT
    await setup.service.stop()
    setup.remoting.lose("ns1:9876")
    await settle()
    assert setup.channel.codes()[2:] == [RequestCode.UNREGISTER_BROKER]


async def test_which_name_servers_know_the_broker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    assert setup.service.name_servers == {"ns1:9876": False, "ns2:9876": False}
    await setup.start()
    assert setup.service.name_servers == {"ns1:9876": True, "ns2:9876": True}
    setup.channel.outcome = ConnectionFailed("ns1:9876", "it closed", reached=True)
    await setup.advance(30)
    assert setup.service.name_servers == {"ns1:9876": False, "ns2:9876": True}
    assert setup.service.why_unknown == "", "clients find it by the other one"
    setup.channel.outcome = 0
    await setup.advance(30)
    assert setup.service.name_servers == {"ns1:9876": True, "ns2:9876": True}


async def test_topics_are_ordered_as_the_name_servers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    one, other = setup.channels.values()
    await setup.start()
    await setup.create("T")
    await setup.create("U")

    def ordered() -> set[str]:
        return {name for name, topic in setup.topics.table.items() if topic.order}

    one.order_table, other.order_table = {"T": "broker-a:4", "elsewhere": "b:4"}, {"U": "a:4"}
    await setup.advance(30.1)
    assert ordered() == {"T", "U"}
    one.order_table = {}
    await setup.advance(30.1)
    assert ordered() == {"U"}
    one.order_table = other.order_table = None
    await setup.advance(30.1)
    assert ordered() == {"U"}, "name servers without such a table say nothing"
    setup.namesrv.kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    await setup.advance(30.1)
    assert ordered() == {"T"}
    count = len(one.requests)
    await setup.advance(30.1)
    assert len(one.requests) == count + 1, "a mark that stands causes no further registration"
    await setup.service.stop()


async def test_no_mark_goes_before_all_name_servers_were_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch, namesrv_addr="ns1:9876;ns2:9876")
    one, other = setup.channels.values()
    one.order_table = {}
    other.outcome = ConnectionFailed("ns2:9876", "nobody listens")
    await setup.create("T")
    setup.topics.update(msgspec.structs.replace(setup.topics.table["T"], order=True))
    await setup.start()
    await setup.advance(30.1)
    assert setup.topics.table["T"].order, "the other may name it"
    other.outcome = 0
    await setup.advance(30.1)
    assert not setup.topics.table["T"].order
    await setup.service.stop()


async def test_a_table_of_nonsense_costs_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(monkeypatch)
    setup.channel.body = b"[1]"
    await setup.start()
    assert setup.channel.codes() == [RequestCode.REGISTER_BROKER]
    assert setup.service.why_unknown == ""
    assert "table of ordered topics is left out" in caplog.text
    await setup.service.stop()


MASTER = {"masterAddr": "10.0.0.9:10911", "haServerAddr": "10.0.0.9:10912"}


def _slave(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Setup:
    store = StoreConfig(
        store_path_root_dir=Path("/store"), broker_role="SLAVE",
        ha_master_address=changes.pop("ha_master_address", None),
    )  # fmt: skip
    return Setup(monkeypatch, store=store, broker_id=2, **changes)


async def test_a_slave_registers_with_its_id_and_hears_where_its_master_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = _slave(monkeypatch, force_register=False)
    heard: list[str | None] = []
    setup.master.listeners.append(lambda: heard.append(setup.master.ha_address))
    setup.channel.changed = "false"
    setup.channel.master = dict(MASTER)
    await setup.start()
    assert setup.channel.codes() == [RequestCode.REGISTER_BROKER], "it wants the answer"
    assert setup.channel.requests[0].ext_fields["brokerId"] == "2"
    assert (setup.master.address, setup.master.ha_address) == tuple(MASTER.values())
    await setup.advance(30)
    assert heard == ["10.0.0.9:10912"], "nothing has changed"
    setup.channel.master = {}
    await setup.advance(30)
    assert setup.master.address == "10.0.0.9:10911", "the master may only be starting again"
    setup.channel.master = {**MASTER, "haServerAddr": "10.0.0.8:10912"}
    await setup.advance(30)
    assert heard == ["10.0.0.9:10912", "10.0.0.8:10912"]
    await setup.service.stop()
    assert setup.channel.requests[-1].ext_fields["brokerId"] == "2"


async def test_a_slave_asks_soon_again_while_nobody_knows_its_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = _slave(monkeypatch)
    await setup.start()
    assert setup.master.address is None
    setup.channel.master = dict(MASTER)
    await setup.advance(3)
    assert setup.master.address == "10.0.0.9:10911"
    count = len(setup.channel.requests)
    await setup.advance(9)
    assert len(setup.channel.requests) == count
    await setup.service.stop()


async def test_the_configured_ha_address_is_stronger_than_what_name_servers_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = _slave(monkeypatch, ha_master_address="10.0.0.7:10912")
    assert setup.master.ha_address == "10.0.0.7:10912"
    setup.channel.master = dict(MASTER)
    await setup.start()
    assert setup.master.address == "10.0.0.9:10911"
    assert setup.master.ha_address == "10.0.0.7:10912"
    await setup.service.stop()


async def test_no_name_server_changes_the_topics_of_a_slave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = _slave(monkeypatch)
    setup.channel.order_table = {"orders": "broker-a:4"}
    await setup.start()
    setup.topics.update(TopicConfig(topic_name="orders"))
    await setup.advance(30)
    topic = setup.topics.get("orders")
    assert topic is not None and not topic.order
    await setup.service.stop()


# A role that changes

OTHER = "10.0.0.2:10911"


def _replica(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Setup:
    return Setup(monkeypatch, controller_endpoints="http://127.0.0.1:2379", broker_id=2, **changes)


def _roles(channel: _Channel) -> list[tuple[int, str, str | None]]:
    """What a name server was sent: code, broker id, term."""
    return [
        (request.code, request.ext_fields["brokerId"], request.ext_fields.get("skylarkmq.term"))
        for request in channel.requests
    ]


def _here(setup: Setup) -> dict[int, str]:
    """What the built-in name server says of the broker."""
    broker = setup.namesrv.routes.cluster_info().broker_addr_table.get("broker-a")
    return {} if broker is None else broker.broker_addrs


async def test_a_replica_registers_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _replica(monkeypatch)
    register, unregister = RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER
    await setup.start()
    await setup.create("Early")
    setup.service.register_again()
    await setup.advance(61)
    assert setup.channel.requests == [] and _here(setup) == {}
    assert "neither leads nor follows" in setup.service.why_unknown

    setup.service.set_role(RegisteredRole(2, 0))
    assert _here(setup) == {2: ADDRESS}
    assert setup.namesrv.routes.topics() == [], "topics are taken from masters"
    await settle()
    assert _roles(setup.channel) == [(register, "2", None)]
    assert setup.service.why_unknown == ""
    await setup.create("Followed")
    assert len(setup.channel.requests) == 1, "its topics are its master's"

    setup.service.set_role(RegisteredRole(0, 7))
    assert _here(setup) == {0: ADDRESS}
    assert "Followed" in setup.namesrv.routes.topics()
    await settle()
    assert _roles(setup.channel)[1:] == [(register, "0", "7")]
    assert {"Early", "Followed"} <= setup.channel.topics()
    await setup.create("Led")
    await setup.advance(31)
    assert _roles(setup.channel)[2:] == [(register, "0", "7")] * 2, "a topic, and the period"

    setup.channel.brokers = {0: ADDRESS}
    setup.service.set_role(None)
    assert _here(setup) == {}
    await settle()
    assert _roles(setup.channel)[4:] == [(unregister, "0", None)]
    await setup.create("Late")
    await setup.advance(61)
    setup.remoting.lose("ns1:9876")
    await setup.advance(61)
    assert len(setup.channel.requests) == 5, "it has no role"

    setup.service.set_role(RegisteredRole(2, 0))
    await settle()
    await setup.service.stop()
    assert _roles(setup.channel)[5:] == [(register, "2", None), (unregister, "2", None)]
    setup.namesrv.routes.stop()
    assert setup.clock.pending_count == 0


async def test_a_role_that_changes_is_told_although_the_topics_have_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = _replica(monkeypatch, force_register=False)
    setup.channel.changed = "false"
    await setup.start()
    roles = [RegisteredRole(0, 3), RegisteredRole(2, 0), RegisteredRole(0, 0), RegisteredRole(0, 5)]
    for role in roles:
        setup.service.set_role(role)
        await settle()
    assert _roles(setup.channel) == [
        (RequestCode.REGISTER_BROKER, broker_id, term)
        for broker_id, term in (("0", "3"), ("2", None), ("0", None), ("0", "5"))
    ]
    await setup.service.stop()


async def test_a_good_bye_does_not_take_the_place_of_a_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = _replica(monkeypatch)
    await setup.start()
    setup.service.set_role(RegisteredRole(0, 3))
    await settle()
    setup.channel.brokers = {0: OTHER}
    setup.service.set_role(None)
    await settle()
    assert RequestCode.UNREGISTER_BROKER not in setup.channel.codes(), (
        "RocketMQ's name server would drop the new master, whose id it names"
    )
    await setup.service.stop()
    assert RequestCode.UNREGISTER_BROKER not in setup.channel.codes()


async def test_a_good_bye_without_an_answer_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = _replica(monkeypatch)
    await setup.start()
    setup.service.set_role(RegisteredRole(2, 0))
    await settle()
    setup.channel.outcome = RequestTimeout("no answer")
    setup.service.set_role(None)
    await settle()
    await setup.advance(1)
    setup.channel.outcome = 0
    await setup.advance(2)
    await setup.advance(60)
    assert setup.channel.codes()[1:] == [RequestCode.UNREGISTER_BROKER] * 3
    await setup.service.stop()
    assert len(setup.channel.requests) == 4


async def test_a_deposed_master_says_so_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = _replica(monkeypatch)
    await setup.start()
    setup.channel.outcome = ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    setup.channel.remark = "deposed " * 20 + "and this is the cure"
    setup.service.set_role(RegisteredRole(0, 3))
    for _ in range(9):
        await setup.advance(6)
    assert caplog.text.count("this is the cure") == 1
    assert "this is the cure" in setup.service.why_unknown
    for _ in range(2):
        await setup.advance(31)
    assert caplog.text.count("this is the cure") == 2
    setup.channel.outcome = 0
    setup.service.set_role(RegisteredRole(2, 0))
    await settle()
    assert setup.service.why_unknown == ""
    await setup.service.stop()


async def test_the_built_in_name_server_may_know_a_later_master(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = _replica(monkeypatch)
    await setup.start()
    later = Registration(setup.config, setup.topics, OTHER)
    later.role = RegisteredRole(0, 4)
    setup.namesrv.routes.register(later.header(), later.body(), None)
    setup.service.set_role(RegisteredRole(0, 3))
    await setup.create("orders")
    assert caplog.text.count("the built-in name server refuses this broker") == 1
    assert OTHER in setup.service.why_unknown and "term 4" in setup.service.why_unknown
    assert _here(setup) == {0: OTHER}
    setup.service.set_role(RegisteredRole(0, 5))
    assert _here(setup) == {0: ADDRESS} and setup.service.why_unknown == ""
    await setup.service.stop()


async def test_a_broker_notices_another_one_in_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(monkeypatch, register_name_server_period=10_000, namesrv_addr="ns1:9876;ns2:9876")
    setup.channel.brokers = {0: OTHER}
    setup.channel.outcome = ConnectionFailed("ns1:9876", "nobody listens")
    await setup.start()
    await setup.advance(9.9)
    setup.channel.outcome = 0
    await setup.advance(0.1)
    setup.channel.requests.clear()
    assert setup.channel.look_count == 0 and setup.service.why_unknown == "", (
        "who begins may take the place of one that is gone"
    )
    for _ in range(5):
        await setup.advance(10)
    assert setup.channel.look_count == 5
    assert len(setup.channel.requests) == 5, "it registers all the same"
    assert caplog.text.count("same brokerName and brokerId 0") == 1
    assert OTHER in setup.service.why_unknown and "ns1:9876" in setup.service.why_unknown
    await setup.advance(20)
    assert caplog.text.count("same brokerName and brokerId 0") == 2
    setup.channel.brokers = {0: ADDRESS, 1: OTHER}
    await setup.advance(10)
    assert setup.service.why_unknown == ""
    setup.channel.brokers = {0: OTHER}
    await setup.advance(10)
    await setup.service.stop()
    assert setup.channel.codes()[-1] == RequestCode.REGISTER_BROKER, (
        "its good-bye would be taken for that of the other"
    )
    assert setup.channels["ns2:9876"].codes()[-1] == RequestCode.UNREGISTER_BROKER
