"""Errors of the Spark connector beside those of the SDK; each says what an operator can do.

    RocketMQError
      DataLost           messages that a range names are not there (any more)
      SendFailed         a request of the sink has failed for good
      NoProgress         a broker answered again and again without ever going on

They are picklable: Spark carries them from an executor to the driver as text, multiprocessing as
objects.
"""

from __future__ import annotations

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.offsets import describe


class DataLost(RocketMQError):
    """Messages of a queue that were to be read are gone: expired, or their offsets re-used.

    `wanted` is the queue offset to go on from, `available` the one where the broker has messages
    again (or its end, when the queue is shorter than it was), `lost` how many lie between.
    `why` and `cure` are told when the places alone do not tell them.
    """

    def __init__(
        self,
        queue: MessageQueue,
        wanted: int,
        available: int,
        lost: int,
        why: str = "",
        cure: str = "",
    ) -> None:
        self.queue = MessageQueue(*queue)
        self.wanted = wanted
        self.available = available
        self.lost = lost
        self._told = (why, cure)
        is_from = available > wanted or bool(why)
        if not why:
            why = (
                "they have expired on the broker, which keeps messages for fileReservedTime"
                if available > wanted
                else "the topic was made anew, or the broker lost its last messages in a crash"
            )
        super().__init__(
            f"{lost} messages lost: {describe(self.queue)}: wanted from queue offset {wanted}, "
            f"available {'from' if is_from else 'up to'} {available}: {why}",
            hint=f"{cure}{' or s' if cure else 'S'}et failOnDataLoss=false to go on without them",
        )

    def __reduce__(self) -> tuple[type[DataLost], tuple[MessageQueue, int, int, int, str, str]]:
        return DataLost, (self.queue, self.wanted, self.available, self.lost, *self._told)


class NoProgress(RocketMQError):
    """A broker went on answering and gave neither messages nor another place to go on from."""


class SendFailed(RocketMQError):
    """A request of the sink was refused, or not acknowledged within its time."""
