"""Settings of Consumer: names, types, defaults, and the check of each; see `client/config.py`.

Source of the defaults: apache/rocketmq@rocketmq-all-4.9.8
client/.../consumer/DefaultMQPushConsumer.java
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from skylarkmq.client.config import MAX_RECONSUME, MIB, RETRY_DELAY_MAX_S
from skylarkmq.client.consumer.allocate import Assignment, find_allocation
from skylarkmq.client.consumer.subscription import Selector, StartFrom
from skylarkmq.common.settings import require_positive, seconds_of

if TYPE_CHECKING:
    from skylarkmq.client.consumer.rebalance import QueuesCallback
    from skylarkmq.client.instance import Client

AckMode = Literal["auto", "manual", "none"]
Model = Literal["clustering", "broadcasting"]


class ConsumerConfig:
    """The settings of a Consumer."""

    def __init__(
        self,
        *topics: str,
        group: str,
        client: Client | None = None,
        namesrv_addr: str | None = None,
        model: Model = "clustering",
        selector: Selector | None = None,
        start_from: StartFrom = StartFrom.LAST,
        orderly: bool = False,
        assignment: Assignment = "average",
        batch_size: int = 32,
        prefetch: int = 1000,
        prefetch_bytes: int = 100 * MIB,
        max_span: int = 2000,
        max_reconsume: int | None = None,
        retry_delays: Sequence[float | timedelta] = (),
        ack: AckMode = "auto",
        commit_interval: float | timedelta = 5.0,
        consume_timeout: float | timedelta = 900.0,
        on_assigned: QueuesCallback | None = None,
        on_revoked: QueuesCallback | None = None,
        offsets_folder: str | Path | None = None,
        trace: bool | str = False,
    ) -> None:
        """Take and check the settings.

        Raises:
            ValueError: one that cannot be.
        """
        self.topics, self.group = topics, group
        self.client, self.namesrv_addr = client, namesrv_addr
        self.model: Model = model
        self.selector, self.start_from = selector, start_from
        self.orderly = orderly
        self.assignment: Assignment = assignment
        self.batch_size, self.max_span = batch_size, max_span
        self.prefetch, self.prefetch_bytes = prefetch, prefetch_bytes
        self.max_reconsume, self.retry_delays = max_reconsume, retry_delays
        self.ack: AckMode = ack
        self.commit_interval = seconds_of(commit_interval)
        self.consume_timeout = seconds_of(consume_timeout)
        self.on_assigned, self.on_revoked = on_assigned, on_revoked
        self.offsets_folder, self.trace = offsets_folder, trace
        self._check()

    def _check(self) -> None:
        for name in (
            "batch_size",
            "prefetch",
            "prefetch_bytes",
            "max_span",
            "commit_interval",
            "consume_timeout",
        ):
            require_positive(name, getattr(self, name))
        if self.max_reconsume is not None and self.max_reconsume < 0:
            raise ValueError("max_reconsume is 0 or more")
        if any(not 0 <= delay_s <= RETRY_DELAY_MAX_S for delay_s in self.retry_delays_s):
            raise ValueError(f"retry_delays are 0 to {RETRY_DELAY_MAX_S} s each")
        if self.ack not in get_args(AckMode):
            raise ValueError(f"ack is one of {', '.join(get_args(AckMode))}, not {self.ack!r}")
        if self.model not in get_args(Model):
            raise ValueError(f"model is one of {', '.join(get_args(Model))}, not {self.model!r}")
        if self.orderly and self.ack == "none":
            raise ValueError("an ordered consumer acknowledges: ack is auto or manual")
        find_allocation(self.assignment)

    @property
    def retry_delays_s(self) -> list[float]:
        """The retry delays in seconds."""
        return [seconds_of(delay, "each of retry_delays") for delay in self.retry_delays]

    @property
    def broadcasting(self) -> bool:
        """Every member gets every message, and keeps its own offsets."""
        return self.model == "broadcasting"

    @property
    def tries_max(self) -> int | None:
        """How often a message is tried again; None is without end."""
        if self.max_reconsume is None and not self.orderly:
            return MAX_RECONSUME
        return self.max_reconsume
