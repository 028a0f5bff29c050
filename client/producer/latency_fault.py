"""Leaving slow and failing brokers alone for a while.

    the try took at least, ms    50  100    550   1000    2000    3000   15000
    the broker is avoided for, s  0    0     30     60     120     180     600

A try that failed counts as one of 30 s. While every broker of a topic is avoided, the quicker half
of those known takes turns. Unlike the switch to another broker after a failed try, which concerns
one message, this concerns all messages of the producer; keyed and chosen queues stay as they are.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../latency/MQFaultStrategy.java,
LatencyFaultToleranceImpl.java
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

LATENCY_MS: Final = (50, 100, 550, 1000, 2000, 3000, 15000)
AVOIDED_S: Final = (0, 0, 30, 60, 120, 180, 600)
assert len(LATENCY_MS) == len(AVOIDED_S)
FAILED_MS: Final = 30_000
BROKERS_MAX: Final = 1024


class _Fault(NamedTuple):
    latency_ms: float
    until_s: float


class LatencyFaults:
    """What the last try at each broker was like. Loop thread."""

    def __init__(self) -> None:
        self._faults: dict[str, _Fault] = {}
        self._turn = 0

    def ended(self, broker_name: str, took_s: float, now_s: float, *, failed: bool) -> None:
        """Note a try that took `took_s` seconds and ended at `now_s`, monotonic."""
        took_ms = took_s * 1000
        avoided_s = avoided_for_s(FAILED_MS if failed else took_ms)
        if broker_name not in self._faults and len(self._faults) >= BROKERS_MAX:
            del self._faults[next(iter(self._faults))]
        self._faults[broker_name] = _Fault(took_ms, now_s + avoided_s)

    def is_available(self, broker_name: str, now_s: float) -> bool:
        """Return whether messages go there now."""
        fault = self._faults.get(broker_name)
        return fault is None or now_s >= fault.until_s

    def least_bad(self, broker_names: Iterable[str], now_s: float) -> str | None:
        """Return one of these brokers to go to all the same; None when nothing is known of them.

        Available ones first, then by latency, then by the end of their time.
        """
        known = [(name, self._faults[name]) for name in broker_names if name in self._faults]
        if not known:
            return None
        known.sort(
            key=lambda item: (now_s < item[1].until_s, item[1].latency_ms, item[1].until_s, item[0])
        )
        self._turn += 1
        return known[self._turn % max(len(known) // 2, 1)][0]


def avoided_for_s(latency_ms: float) -> int:
    """Return for how long a broker with such a latency is avoided, seconds."""
    index = bisect_right(LATENCY_MS, latency_ms) - 1
    return AVOIDED_S[index] if index >= 0 else 0
