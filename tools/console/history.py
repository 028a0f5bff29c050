"""What the console has seen over time, in memory and bounded: lag, rates, and who is gone.

A look every `sample_s` seconds; an hour of looks at the default of 15 s. A console that has just
started knows nothing of the time before, and one that was stopped forgets.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from skylarkmq.client.admin import Admin, BrokerSummary
from skylarkmq.client.admin.base import each
from skylarkmq.client.admin.status import BrokerRuntime
from skylarkmq.client.errors import RocketMQError
from skylarkmq.common.clock import Clock
from skylarkmq.tools.console.gone import Registered

log = logging.getLogger(__name__)

POINTS_MAX: Final = 240
SERIES_MAX: Final = 1_000
"""Groups and brokers together; of more, the ones looked at longest ago are forgotten."""
SIZES_LOOKS: Final = 40
ASKED_AT_ONCE: Final = 4
"""Half of what a page asks for: nobody waits for a look."""


class Sample(NamedTuple):
    """One look: when, and the values; of a group lag and rate, of a broker messages in and out."""

    at_ms: int
    value: float
    rate: float


class History:
    """Samples by kind and name. Loop thread."""

    def __init__(self, registered: Registered) -> None:
        self._series: OrderedDict[tuple[str, str], deque[Sample]] = OrderedDict()
        self.sizes: dict[str, float] = {}
        """Average bytes of a message by topic, of those asked for within SIZES_LOOKS looks."""
        self.registered = registered

    def add(self, kind: str, name: str, sample: Sample) -> None:
        """Note a look."""
        series = self._series.setdefault((kind, name), deque(maxlen=POINTS_MAX))
        series.append(sample)
        self._series.move_to_end((kind, name))
        if len(self._series) > SERIES_MAX:
            self._series.popitem(last=False)

    def of(self, kind: str, name: str) -> Sequence[Sample]:
        """Return the samples of one, the oldest first."""
        return tuple(self._series.get((kind, name), ()))

    def last(self, kind: str, name: str) -> Sample | None:
        """Return the newest sample of one."""
        series = self._series.get((kind, name))
        return series[-1] if series else None


async def look(admin: Admin, history: History, clock: Clock) -> None:
    """Ask once for everything. Without the answer of each broker the lag of groups is not known.

    Raises:
        RocketMQError: the cluster, or one broker of it, does not answer.
    """

    async def of_group(group: str) -> None:
        try:
            progress = await admin.progress(group)
        except RocketMQError as error:  # deleted meanwhile; or nothing that it may see
            log.debug("no lag of group %s: %s", group, error)
            return
        history.add("group", group, Sample(clock.now_ms(), progress.lag, progress.tps))

    async def of_broker(broker: str) -> None:
        try:
            runtime = await admin.broker_runtime(broker)
        except RocketMQError as error:
            log.debug("no rates of broker %s: %s", broker, error)
            return
        put, got = rates_of(runtime)
        history.add("broker", broker, Sample(clock.now_ms(), put, got))

    brokers = await look_for_brokers(admin, history, clock)
    await each(of_broker, [broker.name for broker in brokers], ASKED_AT_ONCE)
    groups = await admin.list_groups()
    await each(of_group, groups[:SERIES_MAX], ASKED_AT_ONCE)


async def look_for_brokers(
    admin: Admin, history: History, clock: Clock
) -> tuple[BrokerSummary, ...]:
    """Return the brokers that are registered, and note who is gone."""
    brokers = (await admin.cluster()).brokers
    history.registered.note(brokers, datetime.fromtimestamp(clock.now_ms() / 1000, UTC))
    return brokers


async def keep_looking(admin: Admin, history: History, clock: Clock, pause_s: float) -> None:
    """Look again and again; the root of a task. A cluster that is away leaves a gap."""
    for count in itertools.count():
        if count % SIZES_LOOKS == 0:
            history.sizes.clear()
        try:
            await look(admin, history, clock)
        except RocketMQError as error:
            log.info("the lag of this moment is not known: %s", error)
        except Exception:
            log.exception("a look at the cluster failed; the next one follows")
        await sleep(clock, pause_s)


async def sleep(clock: Clock, seconds: float) -> None:
    """Return after so many seconds on a clock."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, over.set_result, None)
    try:
        await over
    finally:
        timer.cancel()


def rates_of(runtime: BrokerRuntime) -> tuple[float, float]:
    """Return messages a second in and out, over the last ten seconds, as a broker tells."""
    return _first(runtime, "putTps"), _first(runtime, "getTransferedTps", "getTransferredTps")


def _first(runtime: BrokerRuntime, *keys: str) -> float:
    for key in keys:
        words = runtime.values.get(key, "").split()
        try:
            if words:
                return float(words[0])
        except ValueError:
            continue
    return 0.0
