"""The SDK without await, against the same clusters."""

from __future__ import annotations

import threading

from skylarkmq.client import Message, StartFrom
from skylarkmq.client import sync as blocking
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import numbered
from tests.support.patience import LIMIT_S


def test_send_consume_and_look(cluster: Cluster) -> None:
    topic, group = cluster.unique("T"), cluster.unique("G")
    with blocking.Client(cluster.namesrv, heartbeat_interval=1.0) as client:
        with blocking.Admin(client=client) as admin, blocking.Producer(client=client) as producer:
            admin.create_topic(topic, queues=2)
            producer.send(Message(topic, "m-0"))
            futures = [producer.send_nowait(Message(topic, f"m-{n}")) for n in range(1, 5)]
            assert all(future.result(LIMIT_S).msg_id for future in futures)
            assert [each.write_queues for each in admin.describe_topic(topic).settings] == [2]
        with blocking.Consumer(
            topic, client=client, group=group, start_from=StartFrom.FIRST
        ) as consumer:
            got = [consumer.getone(timeout=LIMIT_S).body.decode() for _ in range(5)]
        with blocking.PeekReader(topic, client=client, stop="end") as reader:
            seen = [message.body.decode() for message in reader]
    assert sorted(got) == sorted(seen) == numbered("m", 5)


def test_a_handler_in_threads(cluster: Cluster) -> None:
    topic, group = cluster.unique("T"), cluster.unique("G")
    done = threading.Event()
    bodies: list[str] = []
    with blocking.Client(cluster.namesrv, heartbeat_interval=1.0) as client:
        with blocking.Admin(client=client) as admin:
            admin.create_topic(topic, queues=2)

        def handle(message: blocking.ReceivedMessage) -> None:
            assert threading.current_thread() is not threading.main_thread()
            bodies.append(message.body.decode())
            if len(bodies) == 4:
                done.set()

        with (
            blocking.Producer(client=client) as producer,
            blocking.Consumer(
                topic, client=client, group=group, start_from=StartFrom.FIRST
            ) as consumer,
        ):
            running = threading.Thread(target=consumer.run, args=(handle,))
            running.start()
            for number in range(4):
                producer.send(Message(topic, f"m-{number}"))
            assert done.wait(LIMIT_S)
            consumer.stop()
            running.join(LIMIT_S)
    assert sorted(bodies) == numbered("m", 4)
