"""How often a message of the sink is stored, as the brokers of its topic can promise.

    exactly once    every broker that takes the topic is ours and has a deduplication window for
                    it: a message that is sent again is answered, and not stored
    at least once   else; unique keys tell the copies

A window is the broker's own, for all queues of the topic. So where a topic lies on several brokers
a message goes to the one that its unique key chooses (`broker_of`), and to no other while that one
is away. Which brokers these are must be the same for a repeat: option `topicBrokers` names them.

Brokers are asked by 351, a request of RocketMQ 5; those of 4.9 refuse it. Driver and tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from zlib import crc32

from skylarkmq.client.errors import ConnectionFailed, RocketMQError, broker_error
from skylarkmq.client.wire.ask import read_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.topic import GetTopicConfigRequestHeader
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.topic_attributes import (
    DeduplicationWindow,
    WrongAttributeError,
    deduplication_of,
)
from skylarkmq.remoting.connection import CODEC_FIELD, CODEC_OFFER, peer_of
from skylarkmq.spark.cluster import BlockingClient, may_repeat, patiently
from skylarkmq.spark.errors import SendFailed
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions

TASK_TRIES: Final = 4
"""How often Spark tries a task, unless spark.task.maxFailures says something else."""
_WINDOW_FOR_S: Final = 600
"""What errors advise, unless a task's tries may take longer."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What holds for a topic's messages; picklable."""

    brokers: tuple[str, ...] = ()
    """Where they go, each by its key, also when it is repeated; empty: to any broker."""
    window: DeduplicationWindow | None = None
    """The smallest of theirs; None: at least once."""
    why: str = ""
    """What is missing for exactly once."""
    cure: str = ""

    @property
    def text(self) -> str:
        """The promise, for people."""
        if self.window is None:
            return f"at least once: {self.why}"
        return (
            f"exactly once, as repeats within {self.window.seconds} s of a message's first copy "
            f"are known, among the last {self.window.keys} messages of a broker"
        )


class Promises:
    """The topics of a task, or of the driver, and what holds for each. One thread."""

    def __init__(
        self, client: BlockingClient, options: SinkOptions, repeated_since_ms: int | None = None
    ) -> None:
        """Ask nothing yet.

        Args:
            repeated_since_ms: for a task that is repeated, when its first try began at the
                earliest.
        """
        self.found: dict[str, Promise] = {}
        self._client = client
        self._options = options
        self._repeated_since_ms = repeated_since_ms
        self._counts: Counter[tuple[str, str]] = Counter()

    def of(self, topic: str) -> Promise:
        """Return what holds for a topic; its brokers are asked once.

        Raises:
            OptionError: `delivery=exactlyOnce`, and something is missing for that.
            RocketMQError: no answer for `retryTimeoutMs`.
        """
        promise = self.found.get(topic)
        if promise is None:
            promise = self.found[topic] = self._ask(topic)
        if promise.window is None and self._options.delivery == EXACTLY_ONCE:
            raise OptionError(
                f"option delivery=exactlyOnce: {promise.why}. {promise.cure}", "delivery"
            )
        return promise

    def cover(self, queue: MessageQueue, count: int) -> None:
        """Count messages that are about to be sent; with `delivery=exactlyOnce`, they are covered.

        A window knows a number of keys for a time. A task that sends more, and one that is
        repeated when the copies of its first try may be forgotten, would store messages twice.

        Raises:
            SendFailed: so it would be.
        """
        topic, name, _ = queue
        window = self.of(topic).window
        if window is None or self._options.delivery != EXACTLY_ONCE:
            return
        self._counts[topic, name] += count
        if self._counts[topic, name] > window.keys:
            raise SendFailed(
                f"option delivery=exactlyOnce: the task has more messages for topic {topic} than "
                f"the {window.keys} whose keys its deduplication window on broker {name} knows",
                hint="Give the window more keys, or the query smaller batches or more partitions",
            )
        since_ms = self._repeated_since_ms
        if since_ms is None:
            return
        age_s = (self._client.clock.now_ms() - since_ms) / 1000
        if age_s > window.seconds:
            raise SendFailed(
                f"option delivery=exactlyOnce: the task is repeated {age_s:.0f} s after its first "
                f"try began, and the deduplication window of topic {topic} is {window.seconds} s",
                hint=f"A longer window covers it: skylarkmq topic update {topic} --deduplicate "
                f"{round(2 * age_s)}",
            )

    # Inside

    def _ask(self, topic: str) -> Promise:
        if self._options.delivery == AT_LEAST_ONCE:
            return Promise(why="option delivery=atLeastOnce")
        queues = lasting_write_queues(self._client, topic, self._options.topic_brokers)
        places = {queue.broker_name: queue for queue in queues}
        windows: dict[str, DeduplicationWindow] = {}
        away: list[str] = []
        for name in sorted(places):
            try:
                found = self._window(places[name])
            except RocketMQError as error:
                if not may_repeat(error):
                    return _lacking(f"broker {name} does not tell: {error}", error.hint)
                away.append(name)
                continue
            if isinstance(found, Promise):
                return found
            windows[name] = found
        for name in away:
            found = patiently(
                partial(self._window, places[name]),
                self._client.clock,
                self._client.settings.retry_timeout_s,
                f"broker {name}",
            )
            if isinstance(found, Promise):
                return found
            windows[name] = found
        return self._promise(topic, windows)

    def _window(self, queue: MessageQueue) -> DeduplicationWindow | Promise:
        """Return the window of a queue's topic on its broker; if there is none, why."""
        client, (topic, name, _) = self._client, queue
        fields = encode_fields(GetTopicConfigRequestHeader(topic=client.namespace.wrap(topic)))
        request = RemotingCommand.request(
            RequestCode.GET_TOPIC_CONFIG, {**fields, CODEC_FIELD: CODEC_OFFER}
        )
        address = client.master_of(queue)
        answer = client.call(address, request)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return _lacking(
                f"broker {name} has no topic {topic} yet",
                f"Create it: skylarkmq topic create {topic} --deduplicate {self._advised_s}",
            )
        peer = peer_of(answer)
        if not peer.ours or answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return _lacking(
                f"broker {name} is {peer.release}, which has no deduplication windows",
                "Only SkylarkMQ's brokers tell copies; others take delivery=atLeastOnce",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, address)
        try:
            window = deduplication_of(read_body(TopicConfig, answer, address).attributes_map)
        except WrongAttributeError as error:
            return _lacking(f"topic {topic} on broker {name}: {error}", self._update(topic))
        if window is None:
            return _lacking(
                f"topic {topic} has no deduplication window on broker {name}", self._update(topic)
            )
        return window

    def _promise(self, topic: str, windows: Mapping[str, DeduplicationWindow]) -> Promise:
        brokers = tuple(windows)
        window = DeduplicationWindow(
            min(each.seconds for each in windows.values()),
            min(each.keys for each in windows.values()),
        )
        needed_s = tries_s(self._client.settings)
        if window.seconds < needed_s:
            return _lacking(
                f"the deduplication window of topic {topic} is {window.seconds} s, and the "
                f"{TASK_TRIES} tries of a task may take {needed_s:.0f} s ({TASK_TRIES} times "
                "retryTimeoutMs and sendTimeoutMs)",
                f"{self._update(topic)}. Or lower retryTimeoutMs",
            )
        options = self._options
        if options.delivery == EXACTLY_ONCE and len(brokers) > 1 and not options.topic_brokers:
            return _lacking(
                f"topic {topic} lies on several brokers, and one that is away when a message is "
                "repeated would be taken for gone",
                f"Name them: topicBrokers={','.join(brokers)}",
            )
        return Promise(brokers, window)

    @property
    def _advised_s(self) -> int:
        return max(_WINDOW_FOR_S, round(tries_s(self._client.settings) + 1))

    def _update(self, topic: str) -> str:
        return f"Give it one: skylarkmq topic update {topic} --deduplicate {self._advised_s}"


def _lacking(why: str, cure: str) -> Promise:
    return Promise(why=why, cure=cure)


def tries_s(settings: ConnectionSettings) -> float:
    """Return how long all tries of a task may wait for a broker, and its answer."""
    return TASK_TRIES * (settings.retry_timeout_s + settings.request_timeout_s)


def broker_of(brokers: tuple[str, ...], unique_key: str) -> str:
    """Return the one of several brokers, in a fixed order, that a message goes to."""
    return brokers[crc32(unique_key.encode()) % len(brokers)]


def lasting_write_queues(
    client: BlockingClient, topic: str, brokers: tuple[str, ...] = ()
) -> list[MessageQueue]:
    """Return the queues of a topic, trying again while no name server answers.

    Args:
        brokers: only theirs; each must have some.

    Raises:
        RocketMQError: after `retryTimeoutMs`; at once when trying again cannot help.
    """

    def ask() -> list[MessageQueue]:
        queues = client.write_queues(topic)
        if not brokers:
            return queues
        there = {queue.broker_name for queue in queues}
        for name in brokers:
            if name not in there:
                raise ConnectionFailed(
                    name,
                    f"this broker of option topicBrokers takes no messages of topic {topic}",
                    hint="Is it down, or without the topic? Those that do are "
                    f"{', '.join(sorted(there))}",
                )
        return [queue for queue in queues if queue.broker_name in brokers]

    return patiently(ask, client.clock, client.settings.retry_timeout_s, f"topic {topic}")
