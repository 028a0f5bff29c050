"""The version of a table: one number and one time that change with every change of the table.

Versions are compared for equality alone; a name server takes a broker's topics again when the
version differs from the one that it knows.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../DataVersion.java (nextVersion)
"""

from __future__ import annotations

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.text import DataVersion


def first_version(clock: Clock) -> DataVersion:
    """Return the version of a table that was never changed."""
    return DataVersion(counter=0, timestamp=clock.now_ms())


def next_version(version: DataVersion, clock: Clock) -> DataVersion:
    """Return the version after one more change."""
    return DataVersion(counter=version.counter + 1, timestamp=clock.now_ms())
