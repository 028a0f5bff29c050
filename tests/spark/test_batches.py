"""Records into Arrow batches, against the protocol's own decoder. No JVM."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq.client.spark.batches import BatchBuilder
from skylarkmq.client.spark.schema import COLUMNS, arrow_schema, names
from skylarkmq.protocol.record import decode_messages
from tests.spark.support.records import RECORDS, Written, block, row_of, rows_in, sane_time

ALL = names()


def built(data: bytes, chosen: tuple[str, ...] = ALL, **options: Any) -> list[dict[str, Any]]:
    builder = BatchBuilder(chosen, **options)
    batches = builder.add(data, broker_name="broker-a", start=-(2**63), end=2**63 - 1)
    last = builder.finish()
    batches += [] if last is None else [last]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == arrow_schema(chosen)
    assert builder.rows == sum(batch.num_rows for batch in batches)
    return [row for batch in batches for row in rows_in(batch)]


@settings(deadline=None, max_examples=300)
@given(st.lists(RECORDS, max_size=8), st.permutations(COLUMNS), st.integers(1, 21))
def test_rows_are_those_of_the_protocols_decoder(
    records: list[Written], order: list[Any], count: int
) -> None:
    chosen = tuple(column.name for column in order[:count])
    data = block(*[record for record in records if record.queue_offset != 2**63 - 1])
    expected = [sane_time(row_of(message)) for message in decode_messages(data)]
    assert built(data, chosen) == [{name: row[name] for name in chosen} for row in expected]
