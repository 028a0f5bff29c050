"""A name server that knows topic T, and its brokers, all from a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from skylarkmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.spark.support.scripted_peer import Said, Script, ScriptedPeer


@contextmanager
def scripted_brokers(
    script: Script, names: tuple[str, ...] = ("broker-a",), queue_count: int = 2
) -> Iterator[tuple[str, list[ScriptedPeer]]]:
    """Run them; gives the name server's address, and the brokers in the order of `names`.

    What the name server is asked but routes, and all that brokers are asked, the script answers.
    """

    def named(request: RemotingCommand) -> Said | Iterable[Said]:
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return script(request)
        answer = request.reply(0)
        answer.body = encode_body(route)
        return answer

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
