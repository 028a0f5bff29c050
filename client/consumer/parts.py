"""The parts of a started consumer, put together by what it is.

clustering            offsets on the brokers; a share of the queues; failures go to the broker
clustering, ordered   also: queues are locked, failures wait here
broadcasting          offsets here; all queues; failures are tried again here
"""

from __future__ import annotations

from dataclasses import dataclass

from skylarkmq.client.config import MAX_RECONSUME, ConsumerConfig
from skylarkmq.client.consumer.consumer_pushes import ConsumerPushes
from skylarkmq.client.consumer.lite_pull import Inside
from skylarkmq.client.consumer.message_buffer import MessageBuffer
from skylarkmq.client.consumer.offsets.local_offsets import LocalOffsets, offsets_path
from skylarkmq.client.consumer.offsets.offset_store import OffsetStore
from skylarkmq.client.consumer.offsets.start_from import StartFrom
from skylarkmq.client.consumer.orderly import OrderedBuffer, QueueKeeper
from skylarkmq.client.consumer.pull_service import PullService
from skylarkmq.client.consumer.queues.allocate import find_allocation
from skylarkmq.client.consumer.queues.assigned import Standing
from skylarkmq.client.consumer.queues.queue_locks import QueueLocks
from skylarkmq.client.consumer.queues.rebalance import Callbacks, Rebalance
from skylarkmq.client.consumer.queues.shares import AllShares, GroupShares, Shares
from skylarkmq.client.consumer.received_message import Returner
from skylarkmq.client.consumer.retry.local_retry import LocalRetries, LocalReturner
from skylarkmq.client.consumer.retry.retry_delay import RetryDelays
from skylarkmq.client.consumer.retry.send_back import SendBack
from skylarkmq.client.consumer.slow_handlers import SlowHandlers
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.instance import Client
from skylarkmq.client.wire.api_lock import LockApi


@dataclass(frozen=True, slots=True)
class Parts:
    """What belongs to one started consumer."""

    inside: Inside
    send_back: SendBack
    retries: LocalRetries
    slow_handlers: SlowHandlers
    keeper: QueueKeeper | None
    locks: QueueLocks | None
    local_offsets: LocalOffsets | None
    pushes: ConsumerPushes


def put_together(
    client: Client,
    config: ConsumerConfig,
    subscriptions: dict[str, Subscription],
    start_from: StartFrom,
    callbacks: Callbacks,
) -> Parts:
    """Make the parts; nothing is asked or begun yet. The client has been started."""
    services, group = client.services, config.group
    clock = services.clock
    local = _local_offsets(client, config)
    locks = _locks(client, config)
    keeper: QueueKeeper | None = None
    # Without its lock a queue may be another member's, who has come further.
    may_tell = None if locks is None else locks.holds
    offsets = OffsetStore(services, group, local, may_tell)
    if config.orderly:
        buffer: MessageBuffer = OrderedBuffer(clock, config.consume_timeout_s, locks)
        assert isinstance(buffer, OrderedBuffer)
        keeper = QueueKeeper(buffer, locks, offsets)
    else:
        buffer = MessageBuffer(clock, config.consume_timeout_s)
    retries = LocalRetries(clock, buffer)
    tries_max = MAX_RECONSUME if config.tries_max is None else config.tries_max
    delays = RetryDelays(config.retry_delays_s)
    send_back = SendBack(services, group, tries_max, retries, delays)
    pulls = PullService(
        config,
        services,
        subscriptions,
        buffer,
        _returner(config, send_back, retries),
        client.want_heartbeat,
        may_tell,
    )
    returner_alone = _local_returner(config, send_back, retries)
    standing = Standing(services, group, subscriptions, _shares(client, config), returner_alone)
    rebalance = Rebalance(
        services,
        group,
        subscriptions,
        offsets,
        pulls,
        standing,
        start_from,
        callbacks,
        keeper,
    )
    if keeper is not None:
        keeper.follow(rebalance)
    return Parts(
        Inside(services, buffer, offsets, pulls, rebalance, standing),
        send_back,
        retries,
        SlowHandlers(clock, rebalance.assigned, config.consume_timeout_s, group),
        keeper,
        locks,
        local,
        ConsumerPushes(services, config, subscriptions, offsets, rebalance, pulls.counters, locks),
    )


def _shares(client: Client, config: ConsumerConfig) -> Shares:
    if config.broadcasting:
        return AllShares(client)
    return GroupShares(client, config.group, find_allocation(config.assignment))


def _locks(client: Client, config: ConsumerConfig) -> QueueLocks | None:
    if not config.orderly or config.broadcasting:
        return None
    services, group = client.services, config.group
    api = LockApi(services.remoting, client.client_id, group)
    return QueueLocks(api, services, group)


def _local_offsets(client: Client, config: ConsumerConfig) -> LocalOffsets | None:
    if not config.broadcasting:
        return None
    instance_name = client.services.config.instance_name
    return LocalOffsets(offsets_path(config.group, instance_name, config.offsets_folder))


def _returner(config: ConsumerConfig, send_back: SendBack, retries: LocalRetries) -> Returner:
    if not config.orderly and not config.broadcasting:
        return send_back
    return _local_returner(config, send_back, retries)


def _local_returner(config: ConsumerConfig, send_back: SendBack, retries: LocalRetries) -> Returner:
    return LocalReturner(
        retries,
        send_back,
        config.tries_max,
        orderly=config.orderly,
        broadcasting=config.broadcasting,
        delays=RetryDelays(config.retry_delays_s),
    )
