"""The question to a producer: how did the transaction of this half message end? (39, one-way)

It goes to one live client of the producer group, each time to the next one. The answer is an
END_TRANSACTION like any other; an answer that never comes is a question in the next round.

Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/AbstractTransactionalMessageCheckListener.java (sendCheckMessage),
broker/.../client/ProducerManager.java (getAvailableChannel), Broker2Client.java
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from skylarkmq.broker.delay.delayed_message import Parked, Place
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.transaction.messages import final_of, unique_key_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.send import CheckTransactionStateRequestHeader
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.record import encode_record


class Audience(NamedTuple):
    """Who could be asked."""

    writable: list[Connection]
    is_congested: bool  # there are clients, and all leave what they were sent unread


class TransactionCheckListener:
    """Asks producers. Loop thread."""

    def __init__(self, producers: ProducerManager) -> None:
        self._producers = producers
        self._turns = itertools.count()

    def audience(self, group: str) -> Audience:
        """The clients of a producer group that can be asked now."""
        live = [client for client in self._producers.group(group) if not client.closed]
        writable = [client for client in live if not client.paused_since_s]
        return Audience(writable, bool(live) and not writable)

    def ask(self, audience: Audience, half: Parked, place: Place) -> bool:
        """Ask one client about a half message; False when nobody is there.

        Args:
            place: where the half message is, which the answer will name.

        Raises:
            ValueError: the half message names no target.
        """
        writable = audience.writable
        for _ in writable:
            client = writable[next(self._turns) % len(writable)]
            if not client.closed:
                client.push(question(half, place))
                return True
        return False


def question(half: Parked, place: Place) -> RemotingCommand:
    """Return the request: the half message under its real topic and queue, and where it is.

    Raises:
        ValueError: the half message names no target.
    """
    target = final_of(half, 0)
    unique_key = unique_key_of(half)
    body = encode_record(
        queue_id=target.queue_id,
        flag=half.flag,
        queue_offset=place.queue_offset,
        physical_offset=place.physical_offset,
        sys_flag=half.sys_flag,
        born_timestamp=half.born_timestamp,
        born_host=half.born_host,
        store_timestamp=half.store_timestamp,
        store_host=half.store_host,
        reconsume_times=half.reconsume_times,
        prepared_transaction_offset=0,
        body=half.body,
        topic=target.topic.encode("ascii"),
        properties=half.properties,
    )
    header = CheckTransactionStateRequestHeader(
        tran_state_table_offset=place.queue_offset,
        commit_log_offset=place.physical_offset,
        msg_id=unique_key,
        transaction_id=unique_key,
        offset_msg_id=offset_message_id(half.store_host, place.physical_offset),
    )
    return RemotingCommand.request(
        RequestCode.CHECK_TRANSACTION_STATE, encode_fields(header), body, oneway=True
    )
