"""What tests of live masters and slaves share."""

from __future__ import annotations

from skylarkmq.broker.controller import BrokerController
from skylarkmq.store.errors import StoreFullError
from tests.support.patience import until


async def hand_over(master: BrokerController, slave: BrokerController) -> None:
    """Give a slave the rest of its master's log, as a connection between the two would."""
    source, target = master.parts.store.commit_log, slave.parts.store

    def all_taken() -> bool:
        while part := source.part(target.received.next_offset, 1 << 20):
            try:
                target.take_records(target.received.next_offset, bytes(part))
            except StoreFullError:
                return False  # the next file is being made
        return True

    await until(all_taken, "the slave's log")
    assert target.commit_log.stored_offset == source.stored_offset
