"""Name servers that know brokers: of topic T, all from a script; or one that comes late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from skylarkmq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.spark.support.scripted_peer import Said, Script, ScriptedPeer


@contextmanager
def scripted_brokers(
    script: Script, names: tuple[str, ...] = ("broker-a",), queue_count: int = 2
) -> Iterator[tuple[str, list[ScriptedPeer]]]:
    """Run them; gives the name server's address, and the brokers in the order of `names`.

    What the name server is asked but routes and brokers, and all that these are asked, the script
    answers.
    """

    def named(request: RemotingCommand) -> Said | Iterable[Said]:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return cluster_of(request, route.broker_datas)
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return script(request)
        return request.reply(0, body=encode_body(route))

    with ExitStack() as stack:
        brokers = [stack.enter_context(ScriptedPeer(script)) for _ in names]
        route = TopicRouteData(
            broker_datas=[
                BrokerData(broker_addrs={0: broker.address}, broker_name=name, cluster="c")
                for name, broker in zip(names, brokers, strict=True)
            ],
            queue_datas=[
                QueueData(
                    broker_name=name,
                    perm=6,
                    read_queue_nums=queue_count,
                    write_queue_nums=queue_count,
                )
                for name in names
            ],
        )
        yield stack.enter_context(ScriptedPeer(named)).address, brokers


@contextmanager
def late_broker() -> Iterator[ScriptedPeer]:
    """Run a name server with which a broker registers after the first look; it knows no topic."""
    known: list[BrokerData] = []

    def script(request: RemotingCommand) -> RemotingCommand:
        if request.code != RequestCode.GET_BROKER_CLUSTER_INFO:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "none")
        answer = cluster_of(request, known)
        known[:] = [BrokerData(cluster="c", broker_name="a", broker_addrs={0: "127.0.0.1:1"})]
        return answer

    with ScriptedPeer(script) as names:
        yield names


def cluster_of(request: RemotingCommand, brokers: Iterable[BrokerData]) -> RemotingCommand:
    info = ClusterInfo(broker_addr_table={each.broker_name: each for each in brokers})
    return request.reply(0, body=encode_body(info))


def waiting_for(names: ScriptedPeer) -> str:
    """What the log says of a start that waits for them."""
    return f"waiting for name server {names.address}, up to 30 s (startTimeoutMs)"
