"""What a name server knows: brokers, their topics, their clusters, and who is still there.

A broker registers every 30 s. One that is silent for two minutes is dropped, one whose connection
ends at once. The tables live in memory alone; brokers fill them again after a restart.

A registration may carry all topics or only those that changed, so a topic that is missing from one
stays known as long as its broker does. Topics and the cluster are taken from masters (id 0) alone.

A broker that leaves has its queues in a table of its own, so its routes end at once, however many
it has. Which brokers a topic has is put right afterwards, in turns: many brokers with many topics
may leave together, as where a network is cut.

Unlike RocketMQ, a registration does not take the place of a broker that answers: `find_rival` finds
the broker whose place it would take, and the processor asks that one first. The broker in this
process has no rival: what others say under its name or address changes nothing. A broker that has
several connections is there until the last one ends.

Masters that replicas elected among themselves register with the term of their election. The name
server remembers the highest one of each broker name: a master with a higher term takes the place of
the one before, which need not have left, also when that one runs in this process. One with a lower
term was deposed and is refused; so is one without a term while the elected master is there.
Source: apache/rocketmq@rocketmq-all-4.9.8 namesrv/.../routeinfo/RouteInfoManager.java
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final, Protocol

import msgspec

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.bodies.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RegisterBrokerBody,
    TopicRouteData,
)
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import MASTER_ID, PermName
from skylarkmq.protocol.headers.route import (
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
)

log = logging.getLogger(__name__)

BROKER_EXPIRY_S: Final = 120.0
SCAN_INTERVAL_S: Final = 10.0
BROKERS_MAX: Final = 10_000
TOPICS_MAX: Final = 1_000_000
BROKER_TOPICS_MAX: Final = 100_000
"""Topics of one broker."""
NAME_SIZE_MAX: Final = 255
ENTRIES_MAX: Final = 4_000_000
"""Topics of all brokers, a topic counted once for each broker that has it."""
TURN_TOPICS: Final = 2000
"""Topics of brokers that have left which one turn of the loop looks at."""
FILTER_SERVERS_MAX: Final = 64
"""Filter servers of one broker: RocketMQ starts as many as `filterServerNums` says, normally 0."""
READ_WRITE: Final = PermName.PERM_READ | PermName.PERM_WRITE
_NO_QUEUES: Final[Mapping[str, QueueData]] = {}


class BrokerConnection(Protocol):
    """The way by which a broker registered; its end is the broker's end."""

    def close(self, reason: str) -> None: ...

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Ask the broker; raises TimeoutError or ConnectionFailed."""
        ...


class BrokerLiveInfo:
    """One broker process, known by its address."""

    __slots__ = (
        "address",
        "connections",
        "data_version",
        "filter_servers",
        "ha_server_addr",
        "is_own",
        "last_update_s",
        "name",
    )

    def __init__(self, name: str, address: str, connection: BrokerConnection | None) -> None:
        self.name = name
        self.address = address
        self.is_own = connection is None  # it runs in this process
        self.connections: set[BrokerConnection] = set() if connection is None else {connection}
        self.data_version = DataVersion()
        self.filter_servers: list[str] = []
        self.ha_server_addr = ""
        self.last_update_s = 0.0


class RouteInfoManager:
    """The tables of a name server. Loop thread.

    Its size is one idea: these tables change together, by invariants that go from one to another.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Invariant: the addresses in `_live` are those in `_addresses`, each in its broker's.
        # Invariant: every broker name in `_queues` and in `_clusters` stands in `_addresses`.
        self._live: dict[str, BrokerLiveInfo] = {}
        # Invariant: it says of those in `_live` what their `connections` say.
        self._by_connection: dict[BrokerConnection, dict[BrokerLiveInfo, None]] = {}
        self._addresses: dict[str, dict[int, str]] = {}  # broker name -> id -> address
        self._clusters: dict[str, str] = {}  # broker name -> cluster
        self._queues: dict[str, dict[str, QueueData]] = {}  # broker name -> topic -> its queues
        # Invariant: a topic of a broker in `_queues` has it here; it may have brokers of `_left`.
        self._brokers: dict[str, dict[str, None]] = {}  # topic -> broker names
        self._left: list[tuple[str, dict[str, QueueData]]] = []  # brokers, with what they had
        self._turn: TimerHandle | None = None  # in which some of that is forgotten
        # Invariant: every broker name in it stands in `_addresses`; terms are positive.
        self._terms: dict[str, int] = {}  # broker name -> the highest term of its masters
        self._scan = IntervalTimer(clock, SCAN_INTERVAL_S, self.drop_silent)

    def start(self) -> None:
        """Begin to look for brokers that fell silent."""
        self._scan.start()

    def stop(self) -> None:
        """Look no more."""
        self._scan.stop()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def register(
        self,
        header: RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
        connection: BrokerConnection | None,
    ) -> RegisterBrokerResponseHeader:
        """Take a broker in, or note that it is alive; return where a slave finds its master.

        Args:
            connection: the way by which it registers; None when it runs in this process.

        Raises:
            RemoteProtocolError: a name or address is malformed, is that of the broker in this
                process, there is no room, or a slave is of another cluster than its master; with
                CONTROLLER_FENCED_MASTER_EPOCH: the master of that name is another one, by its
                term.
        """
        name, address = header.broker_name, header.broker_addr
        known = self._live.get(address)
        if known is not None and known.is_own and connection is not None:
            if known.name != name:
                raise _own(known)
            return RegisterBrokerResponseHeader()  # it knows better itself
        _check_words(name, address, header.cluster_name)
        if len(body.filter_server_list) > FILTER_SERVERS_MAX:
            raise _refused(f"a broker has at most {FILTER_SERVERS_MAX} filter servers")
        _check_words(*body.filter_server_list)
        known = self._make_room(header, connection)
        wrapper = body.topic_config_serialize_wrapper
        addresses = self._addresses.setdefault(name, {})
        is_new = known is None or addresses.get(header.broker_id) != address
        if is_new:
            self._take_address(addresses, header)
        is_master = header.broker_id == MASTER_ID
        if is_master:
            self._note_term(header)
        # Slaves have their master's topics: theirs would only repeat them, and later.
        if is_master and (is_new or known is None or known.data_version != wrapper.data_version):
            self._take_topics(name, wrapper)
        # A slave may come before its master: what it says of the cluster holds until then.
        if is_master or name not in self._clusters:
            self._clusters[name] = header.cluster_name
        if known is None:
            known = self._live[address] = BrokerLiveInfo(name, address, connection)
        if connection is not None:
            known.connections.add(connection)
            self._by_connection.setdefault(connection, {})[known] = None
        known.data_version = wrapper.data_version
        known.filter_servers = body.filter_server_list
        known.ha_server_addr = header.ha_server_addr
        known.last_update_s = self._clock.monotonic()
        master = self._live.get(addresses.get(MASTER_ID, ""))
        if is_master or master is None:
            return RegisterBrokerResponseHeader()
        return RegisterBrokerResponseHeader(
            master_addr=addresses[MASTER_ID], ha_server_addr=master.ha_server_addr
        )

    def _make_room(
        self, header: RegisterBrokerRequestHeader, connection: BrokerConnection | None
    ) -> BrokerLiveInfo | None:
        """Drop the brokers whose place a registration takes; return what is known of its own.

        Raises:
            RemoteProtocolError: it may not take that place, or there is no room.
        """
        name, address = header.broker_name, header.broker_addr
        self._check_cluster(header)
        known, holder = self._live.get(address), self._holder(header)
        self._check_term(header, holder)
        if connection is None:
            for other in (known, holder):
                if other is not None and not other.is_own:
                    self.drop(other, "it was in the place of the broker in this process")
            known = self._live.get(address)
        elif holder is not None and holder.is_own and not self._is_elected_anew(header):
            raise _own(holder)
        if known is None and len(self._live) >= BROKERS_MAX:
            raise _refused(f"there are {BROKERS_MAX} brokers")
        if known is not None and known.name != name:
            self._drop(address, "another broker took its address")
            known = None
        return known

    def _note_term(self, header: RegisterBrokerRequestHeader) -> None:
        """Note the term of an elected master; any other has none, and ends that of one before."""
        if header.term is None:
            self._terms.pop(header.broker_name, None)
        else:
            self._terms[header.broker_name] = header.term

    def find_rival(
        self, header: RegisterBrokerRequestHeader, connection: BrokerConnection | None
    ) -> BrokerLiveInfo | None:
        """Return a broker whose place a registration would take, None when there is none.

        A broker may take its own place: by the connection that it registered by. So may a slave
        take its master's, under its own address: that is how sets switch their master. Where terms
        decide there is no rival; where they say nothing, an elected master is one even to a slave.
        """
        known = self._live.get(header.broker_addr)
        if known is not None and known.name != header.broker_name:
            return None if connection in known.connections else known
        holder = self._holder(header)
        if holder is None or holder is known or connection in holder.connections:
            return None
        term = self._terms.get(header.broker_name)
        if header.broker_id == MASTER_ID and term is not None:
            return holder if header.term in (None, term) else None
        return holder if known is None or holder.is_own else None

    def has_elected(self, broker_name: str) -> bool:
        """Return whether replicas elect the master of that name."""
        return broker_name in self._terms

    def unregister(
        self, broker_name: str, broker_address: str, connection: BrokerConnection | None
    ) -> bool:
        """Drop a broker that says good-bye; False when that is not the sender's to say.

        Args:
            connection: the way by which it was said; None in this process.
        """
        known = self._live.get(broker_address)
        if known is None or known.name != broker_name:
            return True
        if connection is not None and connection not in known.connections:
            return False
        self._drop(broker_address, "it unregistered")
        return True

    def drop(self, info: BrokerLiveInfo, why: str) -> None:
        """Drop a broker, unless it has gone meanwhile."""
        if self._live.get(info.address) is info:
            self._drop(info.address, why)

    def connection_closed(self, connection: BrokerConnection) -> None:
        """Drop the brokers whose last connection is gone."""
        for info in self._by_connection.pop(connection, {}):
            info.connections.discard(connection)
            if not info.connections:
                self._drop(info.address, "its connection ended")

    def drop_silent(self) -> None:
        """Drop the brokers elsewhere that did not register for BROKER_EXPIRY_S."""
        limit_s = self._clock.monotonic() - BROKER_EXPIRY_S
        for address, info in list(self._live.items()):
            if info.last_update_s < limit_s and not info.is_own:
                self._drop(address, f"it was silent for {BROKER_EXPIRY_S:.0f} s")
                for connection in list(info.connections):
                    connection.close("idle_timeout")

    def data_version(self, broker_address: str) -> DataVersion | None:
        """Return the version of the topics that a broker registered."""
        info = self._live.get(broker_address)
        return None if info is None else info.data_version

    def refresh(self, broker_address: str) -> None:
        """Note that a broker is alive."""
        info = self._live.get(broker_address)
        if info is not None:
            info.last_update_s = self._clock.monotonic()

    def topic_route(self, topic: str) -> TopicRouteData | None:
        """Return where a topic lives, None when no broker that is there has it."""
        queues = self._queues_of(topic)
        if not queues:
            return None
        brokers = [self._broker_data(queue.broker_name) for queue in queues]
        filters = {
            address: servers
            for broker in brokers
            for address in broker.broker_addrs.values()
            if (servers := self._live[address].filter_servers)
        }
        return TopicRouteData(broker_datas=brokers, filter_server_table=filters, queue_datas=queues)

    def forget_topic(self, topic: str, broker_names: Collection[str] | None = None) -> None:
        """Forget where a topic lives: on all brokers, or on those named.

        A broker that still has it makes it known again with its next registration of another
        version.
        """
        known = list(self._brokers.get(topic, ()))
        for name in known if broker_names is None else broker_names:
            self._queues.get(name, {}).pop(topic, None)
            self._forget_broker(topic, name)

    def set_write_permission(self, broker_name: str, *, allowed: bool) -> int:
        """Let clients send to a broker's topics, or not; how many topics it has.

        Holds until the broker registers with another version of its topics. Allowing also lets
        them be read.
        """
        queues = self._queues.get(broker_name, {})
        for topic, data in queues.items():
            perm = READ_WRITE if allowed else data.perm & ~PermName.PERM_WRITE
            queues[topic] = msgspec.structs.replace(data, perm=perm)
        return len(queues)

    def brokers_of(self, cluster: str) -> list[str]:
        """Return the names of a cluster's brokers."""
        return [name for name, known in self._clusters.items() if known == cluster]

    def topics_of(self, cluster: str) -> list[str]:
        """Return the names of the topics that a broker of a cluster has."""
        tables = (self._queues.get(name, _NO_QUEUES) for name in self.brokers_of(cluster))
        return list(dict.fromkeys(topic for table in tables for topic in table))

    def topics_flagged(self, mask: int, flags: int) -> list[str]:
        """Return the names of the topics whose system flags under a mask are these."""
        return [
            topic
            for topic in self._brokers
            if (queues := self._queues_of(topic)) and queues[0].topic_sys_flag & mask == flags
        ]

    def first_address(self) -> str | None:
        """Return the address of some broker, None when there is none."""
        return next((a for broker in self._addresses.values() for a in broker.values()), None)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers with their addresses and clusters."""
        clusters: dict[str, list[str]] = {}
        for name, cluster in self._clusters.items():
            clusters.setdefault(cluster, []).append(name)
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._addresses},
            cluster_addr_table=clusters,
        )

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        if self._left:
            return [topic for topic in self._brokers if self._queues_of(topic)]
        return list(self._brokers)

    def _queues_of(self, topic: str) -> list[QueueData]:
        """Return the queues of a topic on each broker that has it."""
        return [
            queues
            for name in self._brokers.get(topic, ())
            if (queues := self._queues.get(name, _NO_QUEUES).get(topic)) is not None
        ]

    def _holder(self, header: RegisterBrokerRequestHeader) -> BrokerLiveInfo | None:
        """Return the broker that has the name and the id of a registration."""
        addresses = self._addresses.get(header.broker_name, {})
        return self._live.get(addresses.get(header.broker_id, ""))

    def _is_elected_anew(self, header: RegisterBrokerRequestHeader) -> bool:
        """Return whether it is a master that was elected after the one that is known."""
        term = self._terms.get(header.broker_name)
        if header.broker_id != MASTER_ID or term is None or header.term is None:
            return False
        return header.term > term

    def _check_term(
        self, header: RegisterBrokerRequestHeader, holder: BrokerLiveInfo | None
    ) -> None:
        """Check that no later election has made another broker the master of that name.

        Args:
            holder: the broker that has the name and the id now; it is there.

        Raises:
            RemoteProtocolError: one has.
        """
        if header.term is not None and header.term < 1:
            raise _refused(f"a term is 1 or more, not {header.term}")
        name, known = header.broker_name, self._terms.get(header.broker_name)
        if header.broker_id != MASTER_ID or known is None:
            return
        where = "gone" if holder is None else f"at {holder.address}"
        if header.term is None:
            if holder is not None and holder.address != header.broker_addr:
                raise _fenced(
                    f"the replicas of {name} have elected their master, which is {where} (term "
                    f"{known}), and {header.broker_addr} is none of them: give it another "
                    "brokerName, or the controllerEndpoints of those"
                )
        elif header.term < known:
            raise _fenced(
                f"{name} at {header.broker_addr} was elected its master in term {header.term}, "
                f"and there was one in term {known} since, which is {where}: it is to follow that "
                "one, and does so once it reaches etcd. Where terms began anew in an empty etcd, "
                "stop all replicas of that name, so that it is forgotten here"
            )

    def _check_cluster(self, header: RegisterBrokerRequestHeader) -> None:
        """Check that a slave is of its master's cluster; one that is not is no slave of that one.

        Raises:
            RemoteProtocolError: it is of another cluster.
        """
        name = header.broker_name
        master = self._live.get(self._addresses.get(name, {}).get(MASTER_ID, ""))
        cluster = self._clusters.get(name)
        is_foreign = master is not None and cluster != header.cluster_name
        if header.broker_id == MASTER_ID or not is_foreign:
            return
        known = self._live.get(header.broker_addr)
        if known is not None and known.name == name and known is not master:
            self.drop(known, "it is of another cluster than its master")
        raise _refused(
            f"{name} is a broker of the cluster {cluster}, and a slave of it cannot be one of "
            f"{header.cluster_name}: give both the same brokerClusterName, or this one another "
            "brokerName"
        )

    def _broker_data(self, name: str) -> BrokerData:
        return BrokerData(
            broker_addrs=dict(self._addresses[name]),
            broker_name=name,
            cluster=self._clusters[name],
        )

    def _take_address(self, addresses: dict[int, str], header: RegisterBrokerRequestHeader) -> None:
        address = header.broker_addr
        for broker_id in [i for i, other in addresses.items() if other == address]:
            del addresses[broker_id]  # a slave that became the master, or the other way round
        before = addresses.get(header.broker_id)
        if before is not None:
            self._end_life(before)
        addresses[header.broker_id] = address
        log.info("broker %s registered at %s", header.broker_name, address)

    def _take_topics(self, broker_name: str, wrapper: TopicConfigSerializeWrapper) -> None:
        told = wrapper.topic_config_table
        self._forget_some(len(told))  # so that what has left is never more than what was there
        table = self._queues.setdefault(broker_name, {})
        count = sum(map(len, self._queues.values()))
        room = min(BROKER_TOPICS_MAX, len(table) + ENTRIES_MAX - count)
        left_out: list[str] = []
        for topic, config in told.items():
            if topic not in table and (len(table) >= room or not self._has_room(topic)):
                left_out.append(topic)
                continue
            self._brokers.setdefault(topic, {})[broker_name] = None
            table[topic] = QueueData(
                broker_name=broker_name,
                perm=config.perm,
                read_queue_nums=config.read_queue_nums,
                topic_sys_flag=config.topic_sys_flag,
                write_queue_nums=config.write_queue_nums,
            )
        if left_out:
            log.warning(
                "clients do not find %d topics of broker %s, %s for one: a name has 1 to %d "
                "characters, a broker %d topics, and there are %d names, with the brokers that "
                "have them %d entries, at most: delete topics that nobody uses, or give clusters "
                "name servers of their own",
                len(left_out),
                broker_name,
                shown(left_out[0]),
                NAME_SIZE_MAX,
                BROKER_TOPICS_MAX,
                TOPICS_MAX,
                ENTRIES_MAX,
            )

    def _has_room(self, topic: str) -> bool:
        if topic in self._brokers:
            return True
        return 0 < len(topic) <= NAME_SIZE_MAX and len(self._brokers) < TOPICS_MAX

    def _end_life(self, address: str) -> BrokerLiveInfo:
        info = self._live.pop(address)
        for connection in info.connections:
            others = self._by_connection[connection]
            del others[info]
            if not others:
                del self._by_connection[connection]
        return info

    def _drop(self, address: str, why: str) -> None:
        info = self._end_life(address)
        addresses = self._addresses[info.name]
        for broker_id in [i for i, other in addresses.items() if other == address]:
            del addresses[broker_id]
        log.info("broker %s at %s dropped: %s", info.name, address, why)
        if addresses:
            return
        del self._addresses[info.name]
        self._terms.pop(info.name, None)
        self._clusters.pop(info.name, None)
        queues = self._queues.pop(info.name, None)
        if queues:
            self._left.append((info.name, queues))
            self._forget_later()

    def _forget_later(self) -> None:
        if self._left and self._turn is None:
            self._turn = self._clock.call_at(self._clock.monotonic(), self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._forget_some(TURN_TOPICS)
        self._forget_later()

    def _forget_some(self, count: int) -> None:
        """Forget of so many topics that brokers had them which have left since."""
        rest = count
        while self._left and rest > 0:
            name, queues = self._left[-1]
            while queues and rest > 0:
                topic, _ = queues.popitem()
                rest -= 1
                if topic not in self._queues.get(name, _NO_QUEUES):  # it has not come back
                    self._forget_broker(topic, name)
            if not queues:
                self._left.pop()

    def _forget_broker(self, topic: str, name: str) -> None:
        brokers = self._brokers.get(topic, {})
        brokers.pop(name, None)
        if not brokers:
            self._brokers.pop(topic, None)


def _check_words(*words: str) -> None:
    for word in words:
        if not 0 < len(word) <= NAME_SIZE_MAX or not word.isprintable():
            raise _refused(f"{shown(word)} is no name or address of a broker")


def _own(known: BrokerLiveInfo) -> RemoteProtocolError:
    return _refused(
        f"broker {known.name} at {known.address} runs in the process of this name server, and "
        "no other broker takes its place: give the other broker another brokerName or brokerId",
    )


def _fenced(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, why)


def _refused(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
