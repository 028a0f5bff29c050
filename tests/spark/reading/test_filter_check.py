"""SQL92 is shown to brokers before the first task."""

from __future__ import annotations

import pytest

from skylarkmq.client.errors import AuthError, BrokerError, FilterRefused, NoPermission
from skylarkmq.protocol.bodies.group import CheckClientRequestBody
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.options import ReadSettings, SourceOptions
from skylarkmq.spark.reading.planning import BatchPlanner, StreamPlanner
from skylarkmq.spark.reading.queue_view import FilterCheck
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.fake_brokers import FakeBrokers
from tests.spark.support.scripted_brokers import scripted_brokers
from tests.spark.support.stream_place import A0, B0, Place


class BlockedClock(SystemClock):
    """Nobody is to wait here: what is refused stays refused."""

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"waits for {seconds} s")


QUEUES = [QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)]
CONNECTION = ConnectionSettings(name_servers=("n:1",))
SQL = ReadSettings(CONNECTION, "g", "n > 3", sql92=True)


def test_one_question_a_broker_and_none_for_tags() -> None:
    brokers = FakeBrokers(QUEUES)
    FilterCheck(brokers, ReadSettings(CONNECTION, "g", "A || B")).show(QUEUES)
    assert brokers.asked == []
    check = FilterCheck(brokers, SQL)
    check.show(QUEUES[:2])
    assert brokers.asked == ["filter a"]
    check.show(QUEUES)
    assert brokers.asked == ["filter a", "filter b"]


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
        FilterCheck(brokers, SQL).show(QUEUES)
    assert type(error.value) is kind
    assert kind is not FilterRefused or "'n > 3'" in str(error.value)


def test_a_query_that_goes_on_from_its_checkpoint_asks_before_its_first_batch() -> None:
    place = Place(A0, B0, expressionType="SQL92", subExpression="n > 3")
    start = place.begin()
    assert [each for each in place.brokers.asked if "filter" in each] == ["filter a", "filter b"]
    for queue in (A0, B0):
        place.brokers.send(queue, "message")
    end = place.latest(start)
    place.restart()
    place.brokers.asked.clear()
    assert place.plan(start, end) == place.plan(start, end) != []
    assert [each for each in place.brokers.asked if "filter" in each] == ["filter a", "filter b"]
    place.restart()
    place.brokers.filter_refusal = BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no", "h:1")
    with pytest.raises(FilterRefused, match="Correct the expression"):
        place.plan(start, end)


def test_an_apache_broker_that_cannot_read_it_is_not_pulled_from() -> None:
    """It answers a pull with every message; only the question before says what is wrong."""
    codes: list[int] = []

    def apache(request: RemotingCommand) -> RemotingCommand:
        codes.append(request.code)
        if request.code == RequestCode.CHECK_CLIENT_CONFIG:
            asked = decode_body(CheckClientRequestBody, request.body).subscription_data
            assert (asked.topic, asked.sub_string, asked.expression_type) == ("T", "n > 3", "SQL92")
            return request.reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "Lexical error")
        return request.reply(0, None, {"offset": "0"})

    with scripted_brokers(apache) as (name_server, _):
        given = {"nameServer": name_server, "topic": "T", "subExpression": "n > 3"}
        options = SourceOptions.from_options({**given, "expressionType": "SQL92"}, streaming=False)
        client = BlockingClient(options.connection, BlockedClock())
        with pytest.raises(FilterRefused, match=r"Lexical error .*'n > 3'.*Correct the expression"):
            BatchPlanner(client, options).plan()
        client.close()
    assert codes == [RequestCode.CHECK_CLIENT_CONFIG]


def test_a_real_broker_refuses_before_any_task(broker: SyncBroker, topic: str) -> None:
    """The broker of the tests does not filter by SQL92, as is RocketMQ's default."""
    given = {"nameServer": broker.namesrv_addr, "topic": topic}
    given |= {"subExpression": "n > 3", "expressionType": "SQL92"}
    batch = SourceOptions.from_options(given, streaming=False)
    stream = SourceOptions.from_options(given, streaming=True)
    client = BlockingClient(batch.connection, BlockedClock())
    for ask in (
        BatchPlanner(client, batch).plan,
        StreamPlanner(client, stream).initial,
    ):
        with pytest.raises(FilterRefused, match="enablePropertyFilter=true"):
            ask()
    client.close()
