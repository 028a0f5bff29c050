"""A broker for all tests of this folder that may share one, and a shell for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer
from skylarkmq.testing import SyncBroker, run_broker_sync
from tests.support.patience import LIMIT_S
from tests.tools.admin.support import COUNT, GROUP, TOPIC, Shell


@pytest.fixture(scope="session")
def broker() -> Iterator[SyncBroker]:
    """One with a topic of two queues and a group that has taken its six messages."""
    with run_broker_sync() as running:
        running.create_topic(TOPIC, 2)
        with running.client() as client:
            with Producer(client=client) as producer:
                for number in range(COUNT):
                    producer.send(Message(TOPIC, f"m-{number}", keys=f"k-{number}", tags="A"))
            with Consumer(
                TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST
            ) as consumer:
                for _ in range(COUNT):
                    consumer.getone(LIMIT_S).ack()
                consumer.commit()
        yield running


@pytest.fixture
def shell(broker: SyncBroker, tmp_path: Path) -> Shell:
    """Commands towards the broker."""
    return Shell(tmp_path, variables={"NAMESRV_ADDR": broker.namesrv_addr})
