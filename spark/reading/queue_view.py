"""Which queues a read has, and where they begin and end: what brokers say, remembered for a while.

    name server --metadataRefreshMs--> queues     brokers --offsetCacheMs--> ends

Spark asks for the ends of an idle query some ninety times a second, so they are kept; for longer
when asking takes long, so that asking never takes more than a tenth of the time. A broker that is
away keeps its last ends, is asked again less and less often, and its queues stay. Only masters are
asked: a slave that lags, or has expired more, would look like a loss of messages.

Driver process, one thread. Imports no pyspark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from skylarkmq.client.consumer.subscription import filter_error
from skylarkmq.client.errors import (
    BrokerError,
    FilterRefused,
    NotFound,
    RocketMQError,
    RouteNotFound,
    TopicNotExist,
)
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.remoting.waiting import Backoff
from skylarkmq.spark.cluster import TOOLS_GROUP, BlockingClient, may_repeat, patiently
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.options import ReadSettings, Subject
from skylarkmq.spark.reading.positions import listed

log = logging.getLogger(__name__)
T = TypeVar("T")

AWAY_FIRST_S: Final = 1.0
AWAY_MAX_S: Final = 30.0
"""How long a broker that did not answer is left alone; doubling."""
ASKING_SHARE: Final = 10
"""Ends are kept at least this many times as long as it took to ask brokers that answer for them."""
OWN_TOPIC_MARK: Final = "%"
"""Retry and dead-letter topics begin with it; a pattern finds them only when it names it."""
_TOPIC_AWAY: Final = (RouteNotFound, TopicNotExist)
_NO_SUCH_TOPIC: Final = frozenset({"topic_missing", "auto_create_off"})


class QueueView:
    """The queues of one subject, as far as they are known."""

    def __init__(
        self,
        brokers: BlockingClient,
        subject: Subject,
        *,
        refresh_s: float = 30.0,
        cache_s: float = 0.1,
        patience_s: float = 60.0,
        group: str = TOOLS_GROUP,
    ) -> None:
        """Ask no broker yet.

        Args:
            patience_s: how long `patiently` goes on trying.
            group: with whose permission messages are looked at.
        """
        self.brokers = brokers
        self.subject = subject
        self._clock = brokers.clock
        self._refresh_s = refresh_s
        self._cache_s = cache_s
        self._patience_s = patience_s
        self._group = group
        self._queues: list[QueueKey] = []
        self._queues_until_s: float | None = None
        self._ends: dict[QueueKey, int] = {}
        self._ends_until_s: float | None = None
        self._away: dict[tuple[str, str], Backoff] = {}
        # By broker, with a topic that only this broker lacks, or with none.
        self._silent: dict[str, Backoff] = {}
        # Brokers of which nobody tells which messages they have, not a slave either.

    def queues(self) -> list[QueueKey]:
        """Return the queues of the subject, looked up again every `refresh_s`.

        Once there were any, a failing look-up is logged and the queues known are returned.

        Raises:
            NotFound: there is no such topic, no such queue, or none that can be read.
            RocketMQError: no name server answered.
        """
        now_s = self._clock.monotonic()
        if self._queues_until_s is not None and now_s < self._queues_until_s:
            return self._queues
        try:
            self._queues = self._look_up()
        except RocketMQError as error:
            if self._queues_until_s is None or not (_passing(error) or isinstance(error, NotFound)):
                raise  # a topic whose brokers are all away does not exist either: it may come back
            log.warning("queues of %s not looked up, going on with those known: %s", self, error)
        self._queues_until_s = now_s + self._refresh_s
        return self._queues

    def ends(self, also: Iterable[QueueKey] = ()) -> QueueOffsets:
        """Return the ends of the queues, and of those in `also`, that are known.

        Those of a broker that is away are the last that it said; without any the queue is left out.

        Raises:
            NotFound, RocketMQError: as `queues`, and when a broker refuses to answer at all.
        """
        asked = {*self.queues(), *also}
        now_s = self._clock.monotonic()
        missing = asked - self._ends.keys()
        if self._ends_until_s is None or now_s >= self._ends_until_s:
            took_s = self._ask_ends(asked)
            kept_s = max(self._cache_s, ASKING_SHARE * took_s)
            self._ends_until_s = self._clock.monotonic() + kept_s
        elif missing:  # of a broker that is away, perhaps; the others' are no newer for it
            self._ask_ends(missing)
        return QueueOffsets({key: self._ends[key] for key in asked if key in self._ends})

    def last_ends(self) -> QueueOffsets | None:
        """Return the ends as they were last heard, None before; asks no broker."""
        return QueueOffsets(self._ends) if self._ends else None

    def away(self) -> list[str]:
        """Return the brokers that did not answer when they were asked last, in order."""
        return sorted({broker for broker, _ in self._away})

    def ends_now(self) -> QueueOffsets:
        """Return the ends of all queues of the subject as they are now, none from memory.

        Raises:
            RocketMQError: a broker did not answer for `patience_s`, or refuses.
        """
        queues = self.queues()
        ends = self.patiently(lambda: self.brokers.max_offsets(queues, master_only=True))
        self._ends.update(ends)
        return QueueOffsets(ends)

    def ends_of(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Return the ends, as they are now, of the queues whose broker answers.

        Raises:
            RocketMQError: a broker refuses to answer at all.
        """
        failed: dict[QueueKey, RocketMQError] = {}
        found = self.brokers.max_offsets(queues, failed, master_only=True)
        self._note(failed, found)
        self._ends.update(found)
        return found

    def beginnings(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
        """Return the first offsets of the queues whose broker answers.

        Raises:
            RocketMQError: a broker refuses to answer at all.
        """
        failed: dict[QueueKey, RocketMQError] = {}
        wanted = [key for key in queues if not self._is_away(key)]
        found = self.brokers.min_offsets(wanted, failed, master_only=True) if wanted else {}
        self._note(failed, found)
        return found

    def fingerprints(
        self, places: Mapping[QueueKey, int], *, patient: bool
    ) -> tuple[dict[QueueKey, Fingerprint], set[QueueKey]]:
        """Return which messages stand at queue offsets, and the queues that nobody tells of.

        Slaves tell as well. Who refuses to tell, and who has no such message, is not silent: there
        is nothing to wait for.

        Args:
            patient: nobody is silent; else one that was is asked less and less often.

        Raises:
            RocketMQError: patient, and a broker did not answer for `patience_s`.
        """
        if patient:
            return self.patiently(lambda: self._fingerprints(places)), set()
        now_s = self._clock.monotonic()
        waiting = {name for name, silent in self._silent.items() if silent.until_s > now_s}
        wanted = {key: at for key, at in places.items() if key.broker_name not in waiting}
        failed: dict[QueueKey, RocketMQError] = {}
        found = self._fingerprints(wanted, failed)
        silent = {key.broker_name for key in failed}
        for broker in silent:
            self._silent.setdefault(broker, Backoff(AWAY_FIRST_S, AWAY_MAX_S)).failed(now_s)
        for broker in {key.broker_name for key in wanted} - silent:
            self._silent.pop(broker, None)
        return found, {*failed, *(places.keys() - wanted.keys())}

    def patiently(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns, tried again for `patience_s` while brokers are away.

        Raises:
            RocketMQError: the last failure; at once when trying again cannot help.
        """
        return patiently(ask, self._clock, self._patience_s, self, _passing)

    def __str__(self) -> str:
        return str(self.subject)

    def _fingerprints(
        self, places: Mapping[QueueKey, int], silent: dict[QueueKey, RocketMQError] | None = None
    ) -> dict[QueueKey, Fingerprint]:
        """Return which messages stand at queue offsets.

        Args:
            silent: takes the queues without an answer; None: the first of their errors is raised.
        """
        failed: dict[QueueKey, RocketMQError] = {}
        found = self.brokers.fingerprints(places, failed, group=self._group) if places else {}
        passing = {key: error for key, error in failed.items() if _passing(error)}
        if silent is None and passing:
            raise next(iter(passing.values()))
        if silent is not None:
            silent |= passing
        return found

    def _look_up(self) -> list[QueueKey]:
        subject = self.subject
        topics: Sequence[str] = subject.topics
        if subject.queues:
            topics = sorted({key.topic for key in subject.queues})
        elif subject.pattern:
            topics = self._matching()
        found = sorted(key for topic in topics for key in self._queues_of(topic))
        if not subject.queues:
            return found
        wrong = set(subject.queues) - set(found)
        if wrong and self._queues_until_s is None:
            raise NotFound(
                f"assigned queues that do not exist: {listed(wrong)}",
                hint=f"Their topics have {listed(found)}; see option assign",
            )
        return list(subject.queues)

    def _matching(self) -> list[str]:
        pattern = re.compile(self.subject.pattern)
        own = OWN_TOPIC_MARK in self.subject.pattern
        known = self.brokers.topics()
        topics = [
            topic
            for topic in known
            if pattern.fullmatch(topic) and (own or not topic.startswith(OWN_TOPIC_MARK))
        ]
        if not topics and self._queues_until_s is None:
            log.warning("no topic matches %r yet, of %d", self.subject.pattern, len(known))
        return topics

    def _queues_of(self, topic: str) -> list[QueueKey]:
        try:
            queues = self.brokers.read_queues(topic)
        except RouteNotFound as error:
            if self.subject.pattern:  # went away between the two questions
                return []
            if error.reason not in _NO_SUCH_TOPIC:
                raise
            raise NotFound(
                f"topic {topic} does not exist: no broker serves it ({error.reason})",
                hint=f"Create it, or see option topic. {error.hint}".strip(),
            ) from error
        if not queues:
            raise NotFound(
                f"topic {topic} has no queue that can be read",
                hint="Give it read permission (perm 4 or 6) and read queues: "
                "mqadmin updateTopic -r 4 -p 6, or Admin.update_topic",
            )
        return [QueueKey(*queue) for queue in queues]

    def _ask_ends(self, asked: Iterable[QueueKey]) -> float:
        """Ask for the ends of queues whose broker is not away; return how long it took, in s.

        That is 0 when one did not answer: its time-outs say nothing of the others, and it is left
        alone for a while anyway.
        """
        failed: dict[QueueKey, RocketMQError] = {}
        began_s = self._clock.monotonic()
        wanted = sorted(key for key in asked if not self._is_away(key))
        found = self.brokers.max_offsets(wanted, failed, master_only=True) if wanted else {}
        took_s = self._clock.monotonic() - began_s
        self._ends.update(found)
        self._note(failed, found)
        return 0.0 if failed else took_s

    def _is_away(self, key: QueueKey) -> bool:
        now_s = self._clock.monotonic()
        places = ((key.broker_name, ""), (key.broker_name, key.topic))
        return any(away and now_s < away.until_s for away in map(self._away.get, places))

    def _note(self, failed: dict[QueueKey, RocketMQError], found: Iterable[QueueKey]) -> None:
        """Remember who did not answer and who does again.

        Raises:
            RocketMQError: an answer that asking again does not change.
        """
        for error in failed.values():
            if not _passing(error):
                raise error
        for key in found:
            for place in ((key.broker_name, ""), (key.broker_name, key.topic)):
                if self._away.pop(place, None) is not None:
                    log.warning("%s answers again", _place_text(place))
        now_s = self._clock.monotonic()
        lacking = {
            (key.broker_name, key.topic if isinstance(error, _TOPIC_AWAY) else ""): error
            for key, error in failed.items()
        }
        for place, error in lacking.items():
            away = self._away.setdefault(place, Backoff(AWAY_FIRST_S, AWAY_MAX_S))
            wait_s = away.failed(now_s)
            log.warning(
                "%s does not answer: its queues stay where they are, asked again in %.0f s: %s",
                _place_text(place),
                wait_s,
                error,
            )


def _place_text(place: tuple[str, str]) -> str:
    broker, topic = place
    return f"broker {broker}" + (f" for topic {topic}" if topic else "")


def _passing(error: RocketMQError) -> bool:
    """Return whether asking again later may help, as far as the error tells."""
    return may_repeat(error) or isinstance(error, _TOPIC_AWAY)


class FilterCheck:
    """One query's SQL92 expression, and the brokers that have said that they filter by it.

    An Apache broker that cannot read the expression of a pull says so in its log alone, and answers
    with every message. So the driver reads the expression itself (options.py), and asks each broker
    by the question that consumers ask before they start (46), once in a run of the query. Tags need
    no question.
    Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
    (processRequest), broker/.../filter/ConsumerFilterManager.java (build)
    """

    def __init__(self, brokers: BlockingClient, reading: ReadSettings) -> None:
        """Ask no broker yet."""
        self._brokers = brokers
        self._reading = reading
        self._willing: set[str] = set()

    def show(self, queues: Iterable[QueueKey]) -> None:
        """Ask the brokers of these queues that were not asked before.

        Raises:
            FilterRefused: a broker does not filter by SQL92, or cannot read the expression.
            RocketMQError: a broker refuses the reader for another reason, or does not answer.
        """
        reading = self._reading
        if not reading.sql92:
            return
        for queue in queues:
            subscription = reading.subscription(queue.topic)
            if subscription is None or queue.broker_name in self._willing:
                continue
            try:
                self._brokers.check_filter(queue, subscription, group=reading.group)
            except BrokerError as error:
                raise self._named(filter_error(error)) from error
            self._willing.add(queue.broker_name)

    def _named(self, error: BrokerError) -> BrokerError:
        if not isinstance(error, FilterRefused):
            return error
        remark = f"{error.remark} (option subExpression: {self._reading.expression!r:.200})"
        return FilterRefused(error.code, remark, error.broker_addr, hint=error.hint)
