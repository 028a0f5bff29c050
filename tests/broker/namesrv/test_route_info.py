"""A name server's tables: who registers, who falls silent, and what clients are told."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.broker.namesrv import route_info
from skylarkmq.broker.namesrv.route_info import RouteInfoManager
from skylarkmq.protocol.bodies.route import RegisterBrokerBody
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.route import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)
from tests.support.manual_clock import ManualClock
from tests.support.python_work import counted_lines


class _Link:
    """A broker's connection."""

    def __init__(self) -> None:
        self.closed_for: list[str] = []

    def close(self, reason: str) -> None:
        self.closed_for.append(reason)

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        raise AssertionError("the tables ask nobody")


def _header(
    name: str = "broker-a", address: str = "10.0.0.1:10911", broker_id: int = 0, cluster: str = "c"
) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        ha_server_addr=f"ha-{address}",
        broker_id=broker_id,
    )


def _body(*topics: str, counter: int = 1, queues: int = 4) -> RegisterBrokerBody:
    table = {
        name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
        for name in topics
    }
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            data_version=DataVersion(counter=counter, timestamp=1), topic_config_table=table
        )
    )


def _entries(routes: RouteInfoManager) -> list[tuple[str, str]]:
    return [(name, topic) for name, queues in routes._queues.items() for topic in queues]


def _queues(routes: RouteInfoManager, topic: str) -> dict[str, int] | None:
    route = routes.topic_route(topic)
    if route is None:
        return None
    return {queue.broker_name: queue.write_queue_nums for queue in route.queue_datas}


def test_a_topic_is_known_with_its_broker() -> None:
    routes = RouteInfoManager(ManualClock())
    assert routes.topic_route("T") is None
    routes.register(_header(), _body("T"), _Link())
    route = routes.topic_route("T")
    assert route is not None
    assert [(b.broker_name, b.cluster, b.broker_addrs) for b in route.broker_datas] == [
        ("broker-a", "c", {0: "10.0.0.1:10911"})
    ]
    assert _queues(routes, "T") == {"broker-a": 4}
    assert routes.topics() == ["T"]
    info = routes.cluster_info()
    assert info.cluster_addr_table == {"c": ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}


def test_two_brokers_share_a_topic() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_header(), _body("T"), _Link())
    routes.register(_header("broker-b", "10.0.0.2:10911"), _body("T", queues=8), _Link())
    assert _queues(routes, "T") == {"broker-a": 4, "broker-b": 8}
    routes.unregister("broker-a", "10.0.0.1:10911", None)
    assert _queues(routes, "T") == {"broker-b": 8}
    assert routes.cluster_info().cluster_addr_table == {"c": ["broker-b"]}


def test_tables_are_taken_again_only_under_another_version() -> None:
    routes = RouteInfoManager(ManualClock())
    link = _Link()
    routes.register(_header(), _body("T", counter=1), link)
    routes.register(_header(), _body("T", "U", counter=1, queues=9), link)
    assert _queues(routes, "T") == {"broker-a": 4} and routes.topic_route("U") is None
    routes.register(_header(), _body("U", counter=2), link)
    assert _queues(routes, "U") == {"broker-a": 4}
    assert _queues(routes, "T") == {"broker-a": 4}, "a registration may carry changes alone"


def test_a_silent_broker_is_dropped_after_two_minutes() -> None:
    clock = ManualClock()
    routes = RouteInfoManager(clock)
    routes.start()
    link = _Link()
    routes.register(_header(), _body("T"), link)
    clock.advance(100)
    routes.refresh("10.0.0.1:10911")
    clock.advance(119)
    assert routes.topic_route("T") is not None
    clock.advance(12)
    assert routes.topic_route("T") is None
    assert link.closed_for == ["idle_timeout"]
    assert routes.topics() == [] and routes.cluster_info().broker_addr_table == {}
    routes.stop()
    assert clock.pending_count == 0


def test_the_end_of_a_connection_is_the_end_of_its_brokers() -> None:
    routes = RouteInfoManager(ManualClock())
    one, other = _Link(), _Link()
    routes.register(_header(), _body("T"), one)
    routes.register(_header("broker-b", "10.0.0.2:10911"), _body("T"), other)
    routes.connection_closed(one)
    assert _queues(routes, "T") == {"broker-b": 4}


def test_the_end_of_an_older_connection_changes_nothing() -> None:
    routes = RouteInfoManager(ManualClock())
    old, new = _Link(), _Link()
    routes.register(_header(), _body("T"), old)
    routes.register(_header(), _body("T"), new)
    routes.connection_closed(old)
    assert _queues(routes, "T") == {"broker-a": 4}


def test_a_stranger_that_speaks_for_a_broker_and_leaves_changes_nothing() -> None:
    routes = RouteInfoManager(ManualClock())
    broker, stranger = _Link(), _Link()
    routes.register(_header(), _body("T"), broker)
    assert not routes.unregister("broker-a", "10.0.0.1:10911", stranger)
    routes.register(_header(), _body("T"), stranger)
    routes.connection_closed(stranger)
    assert _queues(routes, "T") == {"broker-a": 4}
    assert routes.unregister("broker-a", "10.0.0.1:10911", broker)
    assert routes.topics() == []


def test_a_broker_in_this_process_has_no_connection() -> None:
    clock = ManualClock()
    routes = RouteInfoManager(clock)
    routes.start()
    routes.register(_header(), _body("T"), None)
    routes.connection_closed(_Link())
    clock.advance(1000)
    assert _queues(routes, "T") == {"broker-a": 4}
    routes.stop()


def test_nobody_takes_the_place_of_the_broker_in_this_process() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_header(), _body("T"), None)
    stranger = _Link()
    with pytest.raises(RemoteProtocolError, match="runs in the process of this name server"):
        routes.register(_header(address="10.0.0.9:1"), _body("T", counter=9), stranger)
    with pytest.raises(RemoteProtocolError, match="runs in the process of this name server"):
        routes.register(_header("broker-b"), _body("U"), stranger)
    routes.register(_header(broker_id=3), _body("U"), stranger)
    routes.register(_header(cluster="other"), _body("U", counter=9), stranger)
    assert not routes.unregister("broker-a", "10.0.0.1:10911", stranger)
    routes.register(_header(address="10.0.0.9:1", broker_id=1), _body(), stranger)
    with pytest.raises(RemoteProtocolError, match="runs in the process of this name server"):
        routes.register(_header(address="10.0.0.9:1"), _body("U"), stranger)  # a "new master"
    info = routes.cluster_info()
    assert info.broker_addr_table["broker-a"].broker_addrs == {
        0: "10.0.0.1:10911", 1: "10.0.0.9:1"
    }  # fmt: skip
    assert info.cluster_addr_table == {"c": ["broker-a"]}
    routes.connection_closed(stranger)
    assert routes.topics() == ["T"]
    assert routes.unregister("broker-a", "10.0.0.1:10911", None)
    assert routes.topics() == []


def test_the_broker_in_this_process_takes_its_place_from_whoever_has_it() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_header(address="10.0.0.9:1"), _body("U"), _Link())
    routes.register(_header("broker-b"), _body("V"), _Link())
    stranger = _Link()
    routes.register(_header(broker_id=2), _body(), stranger)
    routes.register(_header(), _body("T"), None)
    routes.connection_closed(stranger)
    assert routes.topics() == ["T"]


def test_whose_place_a_registration_would_take() -> None:
    routes = RouteInfoManager(ManualClock())
    master, slave, stranger = _Link(), _Link(), _Link()
    routes.register(_header(), _body("T"), master)
    routes.register(_header(address="10.0.0.2:10911", broker_id=1), _body(), slave)

    def rival(header: RegisterBrokerRequestHeader, connection: _Link) -> str | None:
        found = routes.find_rival(header, connection)
        return None if found is None else found.address

    moved = _header(address="10.0.0.9:10911")
    assert rival(moved, stranger) == "10.0.0.1:10911"
    assert rival(moved, master) is None, "it may move itself"
    assert rival(_header("broker-b"), stranger) == "10.0.0.1:10911"
    assert rival(_header("broker-b"), master) is None
    assert rival(_header(), stranger) is None, "a new connection of the same broker"
    assert rival(_header(address="10.0.0.2:10911"), slave) is None, "the slave becomes the master"
    assert rival(_header(address="10.0.0.3:10911", broker_id=2), stranger) is None
    routes.connection_closed(master)
    assert rival(moved, stranger) is None


def test_a_slave_is_told_its_master_and_its_topics_are_not_taken() -> None:
    routes = RouteInfoManager(ManualClock())
    slave = _header(address="10.0.0.2:10911", broker_id=1)
    assert routes.register(slave, _body("S"), _Link()) == RegisterBrokerResponseHeader()
    answer = routes.register(_header(), _body("T"), _Link())
    assert answer == RegisterBrokerResponseHeader()
    assert routes.register(slave, _body("S"), _Link()) == RegisterBrokerResponseHeader(
        master_addr="10.0.0.1:10911", ha_server_addr="ha-10.0.0.1:10911"
    )
    assert routes.topic_route("S") is None
    route = routes.topic_route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_a_slave_of_another_cluster_is_no_slave() -> None:
    routes = RouteInfoManager(ManualClock())
    slave = _header(address="10.0.0.2:10911", broker_id=1, cluster="other")
    routes.register(slave, _body("S"), _Link())  # nobody knows its master yet
    routes.register(_header(), _body("T"), _Link())
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="cluster c, and a slave of it cannot be one"):
            routes.register(slave, _body("S"), _Link())
        route = routes.topic_route("T")
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    routes.register(_header(cluster="other"), _body("T"), _Link())  # the master moves, and is one
    assert routes.register(slave, _body("S"), _Link()).master_addr == "10.0.0.1:10911"


def test_topics_stay_while_a_slave_is_there() -> None:
    routes = RouteInfoManager(ManualClock())
    master = _Link()
    routes.register(_header(), _body("T"), master)
    routes.register(_header(address="10.0.0.2:10911", broker_id=1), _body(), _Link())
    routes.connection_closed(master)
    route = routes.topic_route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.2:10911"}


def test_a_slave_that_becomes_the_master_stands_once() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_header(broker_id=1), _body(), _Link())
    routes.register(_header(broker_id=0), _body("T"), _Link())
    info = routes.cluster_info()
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}


def test_a_master_that_moves_leaves_its_old_address() -> None:
    clock = ManualClock()
    routes = RouteInfoManager(clock)
    old = _Link()
    routes.register(_header(), _body("T"), old)
    routes.register(_header(address="10.0.0.9:10911"), _body("T"), _Link())
    routes.connection_closed(old)
    routes.unregister("broker-a", "10.0.0.1:10911", None)
    info = routes.cluster_info()
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.9:10911"}


def test_another_broker_may_take_an_address_over() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_header(), _body("T"), _Link())
    routes.register(_header("broker-b"), _body("U"), _Link())
    assert routes.topics() == ["U"]
    routes.unregister("broker-a", "10.0.0.1:10911", None)
    assert routes.topics() == ["U"]


def test_versions_for_those_who_ask_first() -> None:
    routes = RouteInfoManager(ManualClock())
    assert routes.data_version("10.0.0.1:10911") is None
    routes.refresh("10.0.0.1:10911")
    routes.register(_header(), _body(counter=7), _Link())
    assert routes.data_version("10.0.0.1:10911") == DataVersion(counter=7, timestamp=1)


@pytest.mark.parametrize("word", ["", "x" * 256, "a\nb"])
def test_bad_names_leave_no_trace(word: str) -> None:
    routes = RouteInfoManager(ManualClock())
    for header in (_header(name=word), _header(address=word), _header(cluster=word)):
        with pytest.raises(RemoteProtocolError):
            routes.register(header, _body("T"), _Link())
    assert routes.topics() == [] and routes.cluster_info().broker_addr_table == {}


def test_the_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_info, "BROKERS_MAX", 1)
    monkeypatch.setattr(route_info, "TOPICS_MAX", 2)
    routes = RouteInfoManager(ManualClock())
    routes.register(_header(), _body("T", "U", "V", "x" * 256), _Link())
    assert routes.topics() == ["T", "U"]
    with pytest.raises(RemoteProtocolError):
        routes.register(_header("broker-b", "10.0.0.2:10911"), _body("T"), _Link())
    assert routes.cluster_info().cluster_addr_table == {"c": ["broker-a"]}


def test_what_a_broker_registers_is_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other topics are found, and it stays registered: it may have grown for years."""
    monkeypatch.setattr(route_info, "BROKER_TOPICS_MAX", 2)
    monkeypatch.setattr(route_info, "ENTRIES_MAX", 3)
    routes, link = RouteInfoManager(ManualClock()), _Link()
    routes.register(_header(), _body("T", "U", "V", "W"), link)
    assert routes.topics() == ["T", "U"]
    (record,) = caplog.records
    assert "2 topics of broker broker-a" in record.getMessage()
    assert "delete topics that nobody uses" in record.getMessage()
    routes.register(_header(), _body("T", "V", counter=2, queues=9), link)
    assert _queues(routes, "T") == {"broker-a": 9}
    assert routes.topic_route("V") is None
    routes.register(_header("broker-b", "10.0.0.2:10911"), _body("T", "V"), _Link())
    assert _queues(routes, "T") == {"broker-a": 9, "broker-b": 4}
    assert routes.topic_route("V") is None, "of all brokers"
    routes.forget_topic("U")
    routes.register(_header(), _body("V", counter=3), link)
    assert _queues(routes, "V") == {"broker-a": 4}


def test_the_end_of_a_connection_looks_at_its_own_brokers() -> None:
    routes = RouteInfoManager(ManualClock())
    links = [_Link() for _ in range(500)]
    for number, link in enumerate(links):
        routes.register(_header(f"broker-{number}", f"10.0.0.1:{number}"), _body(), link)
    with counted_lines() as work:
        for link in links:
            routes.connection_closed(link)
    assert work.lines < 500 * 100, "some for each, not for each pair"
    assert (routes._live, routes._by_connection) == ({}, {})


@pytest.mark.parametrize("shared", [False, True])
def test_brokers_that_leave_together_are_forgotten_in_turns(shared: bool) -> None:
    clock = ManualClock()
    routes = RouteInfoManager(clock)
    links = [_Link() for _ in range(20)]
    for number, link in enumerate(links):
        header = _header(f"broker-{number}", f"10.0.0.{number}:10911")
        topics = (f"T{topic}" if shared else f"T{number}-{topic}" for topic in range(500))
        routes.register(header, _body("all", *topics), link)
    with counted_lines() as work:
        for link in links[1:]:
            routes.connection_closed(link)
    assert work.lines < 20 * 200, "some for each broker, not for each of its topics"
    assert _queues(routes, "all") == {"broker-0": 4}
    assert len(routes.topics()) == len(routes.topics_of("c")) == 501
    assert routes.topic_route("T19-7") is None
    most = 0
    while (timer := clock.next_timer_s()) is not None:
        assert timer == clock.monotonic()
        with counted_lines() as work:
            run_next(clock)
        most = max(most, work.lines)
    assert 0 < most < route_info.TURN_TOPICS * 20
    assert len(routes.topics()) == 501
    assert (len(routes._brokers), routes._left) == (501, [])


def test_a_broker_that_is_back_before_it_is_forgotten_has_its_topics() -> None:
    clock, link = ManualClock(), _Link()
    routes = RouteInfoManager(clock)
    routes.register(_header(), _body("T", "U", "V"), link)
    routes.connection_closed(link)
    routes.register(_header(), _body("T", queues=9), _Link())
    assert routes.topics() == ["T"]
    clock.advance(0)
    assert _queues(routes, "T") == {"broker-a": 9}
    assert routes.topics() == ["T"]
    assert routes.topic_route("U") is None


def run_next(clock: ManualClock) -> None:
    """Run what is due next, and nothing that it asks for."""
    _, _, timer = clock._timers.pop(0)
    timer.callback(*timer.args)


def test_who_comes_and_goes_leaves_no_more_than_was_there() -> None:
    """Turns of the loop may be few: whoever registers forgets as much as it brings."""
    routes = RouteInfoManager(ManualClock())
    for number in range(50):
        link = _Link()
        topics = [f"T{number}-{topic}" for topic in range(20)]
        routes.register(_header(f"broker-{number}"), _body(*topics), link)
        routes.connection_closed(link)
        assert sum(len(queues) for _, queues in routes._left) <= 20


def _with_filters(*servers: str) -> RegisterBrokerBody:
    return msgspec.structs.replace(_body("T"), filter_server_list=list(servers))


def test_filter_servers_stand_in_the_routes_of_their_broker() -> None:
    routes = RouteInfoManager(ManualClock())
    link = _Link()
    routes.register(_header(), _with_filters("10.0.0.1:7000", "10.0.0.1:7001"), link)
    routes.register(_header("broker-b", "10.0.0.2:10911"), _body("T", "U"), _Link())

    def filters(topic: str) -> dict[str, list[str]]:
        route = routes.topic_route(topic)
        assert route is not None
        return route.filter_server_table

    assert filters("T") == {"10.0.0.1:10911": ["10.0.0.1:7000", "10.0.0.1:7001"]}
    assert filters("U") == {}
    routes.register(_header(), _with_filters(), link)
    assert filters("T") == {}, "they ended, under the same version of the topics"
    routes.register(_header(), _with_filters("10.0.0.1:7000"), link)
    routes.unregister("broker-a", "10.0.0.1:10911", None)
    assert filters("T") == {}


@pytest.mark.parametrize("servers", [["a\nb"], [""], ["f"] * 65])
def test_bad_filter_servers_leave_no_trace(servers: list[str]) -> None:
    routes = RouteInfoManager(ManualClock())
    with pytest.raises(RemoteProtocolError):
        routes.register(_header(), _with_filters(*servers), _Link())
    assert routes.topics() == [] and routes.cluster_info().broker_addr_table == {}


BROKERS = st.tuples(st.sampled_from("ab"), st.sampled_from("1234"), st.integers(0, 2))
STEPS = st.one_of(
    st.tuples(st.just("register"), BROKERS, st.integers(0, 3), st.sampled_from(["T", "U", "TU"])),
    st.tuples(st.just("register_own"), BROKERS, st.just(0), st.sampled_from(["T", "TU"])),
    st.tuples(st.just("unregister"), BROKERS, st.integers(0, 3), st.just("")),
    st.tuples(st.just("close"), BROKERS, st.integers(0, 3), st.just("")),
    st.tuples(st.just("wait"), BROKERS, st.integers(0, 3), st.just("")),
    st.tuples(st.just("forget"), BROKERS, st.integers(0, 3), st.sampled_from("TU")),
    st.tuples(st.just("turn"), BROKERS, st.just(0), st.just("")),
)


@given(st.lists(STEPS, max_size=40))
def test_whatever_brokers_do_routes_lead_to_brokers_that_are_there(
    steps: list[tuple[str, tuple[str, str, int], int, str]],
) -> None:
    clock = ManualClock()
    routes = RouteInfoManager(clock)
    links = [_Link() for _ in range(4)]
    for version, (step, (name, address, broker_id), link, topics) in enumerate(steps):
        header = _header(name, address, broker_id)
        if step == "register":
            try:
                routes.register(header, _body(*topics, counter=version), links[link])
            except RemoteProtocolError:
                continue
            if routes.find_rival(header, links[link]) is None:
                assert routes.data_version(address) is not None
        elif step == "register_own":
            routes.register(header, _body(*topics, counter=version), None)
            assert routes.cluster_info().broker_addr_table[name].broker_addrs[broker_id] == address
        elif step == "unregister":
            routes.unregister(name, address, links[link])
        elif step == "close":
            routes.connection_closed(links[link])
        elif step == "wait":
            clock.advance(61)
            routes.drop_silent()
        elif step == "turn":
            run_next(clock) if clock.pending_count else None
        else:
            routes.forget_topic(topics)
        table = routes.cluster_info().broker_addr_table
        live = {info: each for each, info in routes._live.items()}
        assert {(c, info) for c, infos in routes._by_connection.items() for info in infos} == {
            (c, info) for info in live for c in info.connections
        }
        assert all(name in routes._brokers[topic] for name, topic in _entries(routes))
        standing = [each for data in table.values() for each in data.broker_addrs.values()]
        assert len(standing) == len(set(standing)), "an address stands once"
        there = {each for each in "1234" if routes.data_version(each) is not None}
        assert there == set(standing)
        assert all(data.broker_addrs for data in table.values())
        for topic in routes.topics():
            route = routes.topic_route(topic)
            assert route is not None and route.queue_datas
            assert {data.broker_name for data in route.broker_datas} <= set(table)
    before = routes.topics()
    clock.advance(0)
    assert routes.topics() == before
    assert set(before) == set(routes._brokers)
    assert all(set(names) <= routes._queues.keys() for names in routes._brokers.values())


# Terms

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def _elected(address: str, term: int | None, broker_id: int = 0) -> RegisterBrokerRequestHeader:
    return msgspec.structs.replace(_header(address=address, broker_id=broker_id), term=term)


def _brokers(routes: RouteInfoManager) -> dict[int, str]:
    broker = routes.cluster_info().broker_addr_table.get("broker-a")
    return {} if broker is None else broker.broker_addrs


@pytest.mark.parametrize("own", [False, True])
def test_a_later_master_takes_the_place_of_the_one_before(own: bool) -> None:
    routes = RouteInfoManager(ManualClock())
    first, second = _Link(), _Link()
    routes.register(_elected(A, 3), _body("T"), None if own else first)
    routes.register(_elected(C, None, 2), _body("T"), _Link())
    assert routes.find_rival(_elected(B, 4), second) is None, "it need not have left"
    routes.register(_elected(B, 4), _body("T", "U"), second)
    assert _brokers(routes) == {0: B, 2: C}
    assert routes.data_version(A) is None and sorted(routes.topics()) == ["T", "U"]
    routes.connection_closed(first)
    assert _brokers(routes) == {0: B, 2: C}
    routes.register(_elected(A, None, 1), _body("T"), _Link())
    assert _brokers(routes) == {0: B, 1: A, 2: C}


@pytest.mark.parametrize("term", [3, None])
@pytest.mark.parametrize("broker_id", [0, 1])
def test_a_deposed_master_changes_nothing(term: int | None, broker_id: int) -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_elected(B, 4), _body("T"), _Link())
    deposed = _Link()
    if broker_id:  # it follows already
        routes.register(_elected(A, None, broker_id), _body("T"), deposed)
    before = _brokers(routes)
    with pytest.raises(RemoteProtocolError) as refusal:
        routes.register(_elected(A, term), _body("U", counter=2), deposed)
    assert refusal.value.response_code == ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH
    assert B in refusal.value.remark and "4" in refusal.value.remark
    assert _brokers(routes) == before and routes.topics() == ["T"]
    with pytest.raises(RemoteProtocolError):
        routes.register(_elected(A, term), _body("U"), None)
    assert _brokers(routes) == before


def test_a_term_is_remembered_as_long_as_its_name() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_elected(A, 7), _body("T"), _Link())
    routes.register(_elected(B, None, 1), _body("T"), _Link())
    routes.unregister("broker-a", A, None)
    with pytest.raises(RemoteProtocolError, match="gone"):
        routes.register(_elected(C, 6), _body("T"), _Link())
    routes.unregister("broker-a", B, None)
    routes.register(_elected(C, 1), _body("T"), _Link())
    assert _brokers(routes) == {0: C}


def test_an_elected_master_goes_on_in_its_term_and_in_the_next() -> None:
    routes = RouteInfoManager(ManualClock())
    link = _Link()
    for term in (3, 3, 5):
        assert routes.find_rival(_elected(A, term), link) is None
        routes.register(_elected(A, term), _body("T"), link)
    routes.register(_elected(A, None, 1), _body("T"), link)
    assert _brokers(routes) == {1: A}
    with pytest.raises(RemoteProtocolError):
        routes.register(_elected(A, 4), _body("T"), link)
    with pytest.raises(RemoteProtocolError, match="1 or more"):
        routes.register(_elected(A, 0), _body("T"), link)


def test_a_configured_master_follows_elected_ones_that_are_gone() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_elected(A, 3), _body("T"), _Link())
    routes.register(_elected(B, None, 1), _body("T"), _Link())
    rival = routes.find_rival(_elected(B, None), _Link())
    assert rival is not None and rival.address == A, "whether it is there has to be asked"
    routes.drop(rival, "it does not answer")
    routes.register(_elected(B, None), _body("T"), _Link())
    assert not routes.has_elected("broker-a")
    rival = routes.find_rival(_elected(A, 3), _Link())
    assert rival is not None and rival.address == B, "a term counts among terms"


def test_two_masters_of_one_term_are_two_clusters() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_elected(A, 3), _body("T"), _Link())
    rival = routes.find_rival(_elected(B, 3), _Link())
    assert rival is not None and rival.address == A


def test_the_broker_in_this_process_has_no_successor_without_a_term() -> None:
    routes = RouteInfoManager(ManualClock())
    routes.register(_elected(A, None), _body("T"), None)
    with pytest.raises(RemoteProtocolError, match="runs in the process"):
        routes.register(_elected(B, 9), _body("T"), _Link())
    assert _brokers(routes) == {0: A}
