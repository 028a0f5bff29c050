"""A store that is used in a fixed way while its disk fails at some call, and what it owes then."""

from __future__ import annotations

from typing import Any

from skylarkmq.store.results import GetMessageStatus, PutMessageResult, PutMessageStatus
from tests.store.support import StoreRig, inner
from tests.support.crash_disk import CrashDisk

BODY = b"b" * 6000  # some 20 records fill a log file


class FailingRig(StoreRig):
    """Notes what was acknowledged, and what was refused."""

    def __init__(self, disk: CrashDisk, flush: str, **config: Any) -> None:
        super().__init__(
            disk,
            flush_disk_type=flush,
            mapped_file_size_consume_queue=400,
            sync_flush_timeout=600_000,  # no answer but for good or bad
            **config,
        )
        self.acked: dict[bytes, PutMessageResult] = {}
        self.refused = 0
        self.known = False  # the loop has learned of the failure

    def send(self, number: int, **changes: Any) -> None:
        """Send one message; its answer is noted when it comes."""
        body = b"%d:" % number + BODY

        def done(result: PutMessageResult) -> None:
            if result.status is PutMessageStatus.PUT_OK:
                assert not self.known, "acknowledged after the disk had failed"
                self.acked[body] = result
            else:
                assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
                self.refused += 1

        self.store.put_message(inner("orders", number % 2, body, **changes), done)
        self.known = self.store.failure is not None

    def use(self, **changes: Any) -> None:
        """Send over two rolls, with flushes, written queues and checkpoints in between."""
        for number in range(50):
            self.send(number, **changes)
            if number % 3 == 0:
                self.workers.flush.step()
            if number % 5 == 0:
                self.workers.prepare.step()
            if number % 7 == 0:
                self.clock.advance(1.1)
                self.workers.queues.step()
            if number % 25 == 20:
                self.clock.advance(60)
                self.workers.run_all()
            self.known = self.store.failure is not None
        self.workers.run_all()
        self.clock.advance(1)
        self.workers.run_all()


def check_reads(rig: StoreRig, acked: dict[bytes, PutMessageResult]) -> None:
    """What was acknowledged can be read, each message at its place."""
    for body, result in acked.items():
        queue_id = int(body[: body.index(b":")]) % 2
        found = rig.store.get_message("orders", queue_id, result.queue_offset, 1)
        assert found.status is GetMessageStatus.FOUND, "an acknowledged message is lost"
        assert body in bytes(found.views[0])
