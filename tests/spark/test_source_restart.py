"""A broker that is killed and comes back under a running query; its name server goes with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from tests.interop.children import Children
from tests.interop.skylark_server import SkylarkBroker
from tests.support.patience import JVM_LIMIT_S, until_sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timing

TOPIC = "restarts"
QUEUES = 4
HALF = 250  # messages of a queue, before and after the kill


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SkylarkBroker]:
    """A broker that is a process."""
    children = Children(tmp_path)
    server = SkylarkBroker(children, tmp_path)
    server.start()
    yield server
    children.stop_all()


def send(namesrv: str, first: int) -> None:
    """HALF messages a queue whose bodies say where they must lie."""
    with Producer(namesrv_addr=namesrv) as producer:
        for queue in sorted(producer.queues(TOPIC)):
            bodies = [f"{queue.queue_id}/{first + number}" for number in range(HALF)]
            for start in range(0, HALF, 50):
                batch = [Message(TOPIC, body) for body in bodies[start : start + 50]]
                producer.send_batch(batch, queue=queue)


def until(query: StreamingQuery, met: Callable[[], bool]) -> None:
    """Wait for something while the query goes on; a failed query raises its error."""

    def met_while_it_goes_on() -> bool:
        assert not query.awaitTermination(0.1), "the query has ended"  # type: ignore[arg-type]
        return met()

    try:
        until_sync(met_while_it_goes_on, "the query", JVM_LIMIT_S)
    except AssertionError as error:
        shown = [batch.numInputRows for batch in query.recentProgress]
        raise AssertionError(f"{error}: {query.status}, rows {shown}") from None


def rows_of(query: StreamingQuery) -> int:
    return sum(batch.numInputRows for batch in query.recentProgress)


def kill_under_way(query: StreamingQuery, server: SkylarkBroker) -> None:
    """Let requests pile up at a broker that does not answer, and kill it.

    They are those of a batch, or, if that batch ended in the very moment of the stop, those of the
    plan of the next one. That plan does without a broker that is silent: no batch would begin.
    """
    assert server._child is not None
    os.kill(server._child.pid, signal.SIGSTOP)
    batches = len(query.recentProgress)
    until(
        query,
        lambda: (
            query.status["message"] == "Processing new data"
            or any(batch.numInputRows == 0 for batch in query.recentProgress[batches:])
        ),
    )
    server.kill()


@pytest.mark.spark
def test_query_outlives_its_broker(
    spark: SparkSession, server: SkylarkBroker, tmp_path: Path
) -> None:
    send(server.namesrv, 0)
    messages = (
        spark.readStream.format("skylarkmq")
        .schema("queueId int, queueOffset bigint, body binary")
        .options(nameServer=server.namesrv, topic=TOPIC, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
    )
    query = (
        messages.writeStream.format("memory")
        .queryName("restarts")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        until(query, lambda: rows_of(query) >= 200)
        kill_under_way(query, server)
        before = rows_of(query)
        server.start()
        send(server.namesrv, HALF)
        until(query, lambda: rows_of(query) >= 2 * HALF * QUEUES)
    finally:
        query.stop()
    assert before < HALF * QUEUES, "it was killed too late to matter"
    rows = spark.table("restarts").collect()
    found = sorted((row["queueId"], row["queueOffset"], bytes(row["body"])) for row in rows)
    assert found == [
        (queue, offset, f"{queue}/{offset}".encode())
        for queue in range(QUEUES)
        for offset in range(2 * HALF)
    ]
