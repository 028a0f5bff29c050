"""What a task sends with: how long it waits for the name server, and what it goes on with."""

from __future__ import annotations

import pytest

from skylarkmq.client.errors import ConnectionFailed
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing.promises import lasting_write_queues
from tests.spark.support.blocking_clock import TestClock
from tests.spark.support.scripted_brokers import scripted_brokers
from tests.spark.support.scripted_peer import CLOSE, Said, ScriptedPeer


def client_of(name_server: str, **more: float) -> BlockingClient:
    settings = ConnectionSettings((name_server,), retries=0, **more)  # type: ignore[arg-type]
    return BlockingClient(settings, TestClock())


def relayed(name_server: str, failures: list[int]) -> ScriptedPeer:
    """A name server that is away for a number of questions, `failures[0]`."""
    client = client_of(name_server)

    def script(request: RemotingCommand) -> Said:
        if failures[0]:
            failures[0] -= 1
            return CLOSE
        opaque = request.opaque
        answer = client.call(name_server, request)
        answer.opaque = opaque
        return answer

    return ScriptedPeer(script)


def test_a_name_server_that_is_away_is_waited_for() -> None:
    failures = [5]
    with (
        scripted_brokers(lambda request: None, queue_count=3) as (real, _),
        relayed(real, failures) as names,
    ):
        client = client_of(names.address)
        assert [queue.queue_id for queue in lasting_write_queues(client, "T")] == [0, 1, 2]
        assert failures == [0]
        # Once a topic's queues are known, it makes no difference to sending.
        failures[0] = 1000
        assert len(lasting_write_queues(client, "T")) == 3
        assert failures == [999]
        client.close()


def test_not_for_ever() -> None:
    with ScriptedPeer(lambda request: CLOSE) as gone:
        client = client_of(gone.address, retry_timeout_s=1.0)
        with pytest.raises(ConnectionFailed, match=r"no name server answered.*running there"):
            lasting_write_queues(client, "T")
        assert 3 <= len(gone.requests) <= 5


def test_a_name_server_that_hung_is_asked_again_before_long() -> None:
    clock = TestClock()

    def hang(request: RemotingCommand) -> Said:
        clock.advance(12)
        return CLOSE

    with (
        scripted_brokers(lambda request: None) as (real, _),
        relayed(real, [0]) as names,
    ):
        client = BlockingClient(ConnectionSettings((names.address,), retries=0), clock)
        queue = lasting_write_queues(client, "T")[0]
        script, names.script = names.script, hang
        clock.advance(31)
        client.master_of(queue)
        names.script = script
        asked = len(names.requests)
        clock.advance(29)
        client.master_of(queue)
        assert len(names.requests) == asked
        clock.advance(2)
        client.master_of(queue)
        assert len(names.requests) == asked + 1
        client.close()


def test_a_name_server_that_stays_away_is_not_asked_for_every_request() -> None:
    failures = [0]
    with (
        scripted_brokers(lambda request: None) as (real, brokers),
        relayed(real, failures) as names,
    ):
        clock = TestClock()
        client = BlockingClient(ConnectionSettings((names.address,), retries=2), clock)
        queue = lasting_write_queues(client, "T")[0]
        failures[0] = 10_000
        for _ in range(300):
            clock.advance(0.5)
            assert client.master_of(queue) == brokers[0].address
        # 150 s, and each time it takes 0.03 s of waiting between three tries.
        assert 60 < 10_000 - failures[0] < 3 * 125
        failures[0] = 0
        clock.advance(60)
        asked = len(names.requests)
        client.master_of(queue)
        assert len(names.requests) == asked + 1
        client.close()
