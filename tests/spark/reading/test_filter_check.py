"""SQL92 is shown to brokers before the first task."""

from __future__ import annotations

import pytest

from skylarkmq.client.errors import AuthError, BrokerError, FilterRefused, NoPermission
from skylarkmq.client.spark.client import BlockingClient
from skylarkmq.client.spark.offsets import QueueKey
from skylarkmq.client.spark.options import ReadSettings, SourceOptions
from skylarkmq.client.spark.reading.batch_planner import BatchPlanner
from skylarkmq.client.spark.reading.filter_check import check_filter
from skylarkmq.client.spark.reading.stream_planner import StreamPlanner
from skylarkmq.client.spark.remoting.clock import SystemClock
from skylarkmq.client.spark.remoting.settings import ConnectionSettings
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.fake_brokers import FakeBrokers


class BlockedClock(SystemClock):
    """Nobody is to wait here: what is refused stays refused."""

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"waits for {seconds} s")


QUEUES = [QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)]
CONNECTION = ConnectionSettings(name_servers=("n:1",))
SQL = ReadSettings(CONNECTION, "g", "n > 3", sql92=True)


def test_one_question_a_broker_and_none_for_tags() -> None:
    brokers = FakeBrokers(QUEUES)
    check_filter(brokers, QUEUES, ReadSettings(CONNECTION, "g", "A || B"))
    assert brokers.asked == []
    check_filter(brokers, QUEUES, SQL)
    assert brokers.asked == ["pull", "pull"]


@pytest.mark.parametrize(
    ("refusal", "kind", "hint"),
    [
        (BrokerError(ResponseCode.SYSTEM_ERROR, "no", "h:1"), FilterRefused,
         "enablePropertyFilter"),
        (FilterRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no", "h:1"), FilterRefused,
         "Correct the expression"),
        (AuthError(ResponseCode.SYSTEM_ERROR, "no", "h:1"), AuthError, "credentials"),
        (NoPermission(ResponseCode.NO_PERMISSION, "no", "h:1"), NoPermission, "no"),
    ],
)  # fmt: skip
def test_refusals(refusal: BrokerError, kind: type[BrokerError], hint: str) -> None:
    brokers = FakeBrokers(QUEUES)
    brokers.filter_refusal = refusal
    with pytest.raises(kind, match=hint) as error:
        check_filter(brokers, QUEUES, SQL)
    assert type(error.value) is kind
    assert kind is not FilterRefused or "'n > 3'" in str(error.value)


def test_a_real_broker_refuses_before_any_task(broker: SyncBroker, topic: str) -> None:
    """The broker of the tests does not filter by SQL92, as is RocketMQ's default."""
    given = {"nameServer": broker.namesrv_addr, "topic": topic}
    given |= {"subExpression": "n > 3", "expressionType": "SQL92"}
    batch = SourceOptions.from_options(given, streaming=False)
    stream = SourceOptions.from_options(given, streaming=True)
    client = BlockingClient(batch.connection, BlockedClock())
    for ask in (
        BatchPlanner(client, batch, client.clock).plan,
        StreamPlanner(client, stream, client.clock).initial,
    ):
        with pytest.raises(FilterRefused, match="enablePropertyFilter=true"):
            ask()
    client.close()
