"""Measures how fast bodies become columns, by format, beside the library that reads the format.

    python -m tests.bench.typed [--messages 50000] [--rounds 5]

One core, no Spark and no broker: batches of 2,048 orders of ten fields (a list of two structs, a
struct, a time, a text that is null in two of three) in, the columns `value` and `quarantine` out.
`alone` is a library without this package: pyarrow.json reading all bodies as lines, a cast of
pyarrow's. Rounds are interleaved, medians are shown.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.json

from skylarkmq.spark.typed.column_types import arrow_type, columns_of
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.topic_schema import TopicSchema

BATCH_ROWS = 2048
JSON_COLUMNS = {
    "id": "bigint",
    "customer": "string",
    "price": "double",
    "paid": "boolean",
    "placed": "timestamp",
    "items": "array<struct<sku:string,n:int>>",
    "address": "struct<city:string,zip:string>",
    "note": "string",
    "weight": "bigint",
    "carrier": "string",
}
PLACED = datetime(2026, 1, 31, 8, tzinfo=UTC)


def orders(count: int) -> list[dict[str, Any]]:
    """Orders; every value follows from its number."""
    return [
        {
            "id": at,
            "customer": f"customer-{at % 500}",
            "price": at * 1.25,
            "paid": bool(at % 2),
            "placed": PLACED,
            "items": [{"sku": f"sku-{at % 97}", "n": 1}, {"sku": f"sku-{at % 89}", "n": 2}],
            "address": {"city": "Berlin", "zip": "10115"},
            "note": None if at % 3 else "leave at the door",
            "weight": at * 3,
            "carrier": "by bike",
        }
        for at in range(count)
    ]


def batches(bodies: list[bytes]) -> list[pa.RecordBatch]:
    """Bodies with the columns that say whether they are as they were stored."""
    return [
        pa.record_batch(
            {
                "body": pa.array(part, pa.binary()),
                "sysFlag": pa.array([0] * len(part), pa.int32()),
                "bodyCRC": pa.array([crc32(each) & 0x7FFFFFFF for each in part], pa.int32()),
            }
        )
        for part in (bodies[at : at + BATCH_ROWS] for at in range(0, len(bodies), BATCH_ROWS))
    ]


Road = tuple[str, list[bytes], BodyDecoder, Callable[[list[bytes]], object]]


def roads(rows: list[dict[str, Any]]) -> list[Road]:
    """Each format: its name, bodies, decoder, and what its library does alone."""
    return [json_road(rows), text_road(rows)]


def json_road(rows: list[dict[str, Any]]) -> Road:
    bodies = [json.dumps({**row, "placed": row["placed"].isoformat()}).encode() for row in rows]
    columns = pa.schema(list(arrow_type(columns_of(JSON_COLUMNS))))
    parse = pa.json.ParseOptions(explicit_schema=columns, unexpected_field_behavior="ignore")
    read = pa.json.ReadOptions(use_threads=False, block_size=64 << 20)

    def alone(found: list[bytes]) -> object:
        return pa.json.read_json(pa.BufferReader(b"\n".join(found)), read, parse)

    return "JSON", bodies, BodyDecoder(TopicSchema("json", columns=JSON_COLUMNS)), alone


def text_road(rows: list[dict[str, Any]]) -> Road:
    bodies = [f"{row['customer']} {row['note']}".encode() for row in rows]

    def alone(found: list[bytes]) -> object:
        return pa.array(found, pa.binary()).cast(pa.string())

    return "text", bodies, BodyDecoder(TopicSchema("text")), alone


def timed(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def decode_all(decoder: BodyDecoder, found: list[pa.RecordBatch]) -> None:
    for batch in found:
        decoded = decoder.decode(batch)
        if decoded.quarantine.null_count != batch.num_rows:
            raise RuntimeError(f"not decoded: {decoded.quarantine.drop_null()[0]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast bodies become columns")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    every = [(*road, batches(road[1])) for road in roads(orders(given.messages))]
    spent: dict[str, tuple[list[float], list[float]]] = {road[0]: ([], []) for road in every}
    gc.collect()
    gc.freeze()  # what this program holds is no part of a worker's heap
    for turn in range(given.rounds + 1):
        for name, bodies, decoder, alone, found in every:
            one = timed(lambda d=decoder, f=found: decode_all(d, f))  # type: ignore[misc]
            other = timed(lambda a=alone, b=bodies: a(b))  # type: ignore[misc]
            if turn:  # the first round warms up
                spent[name][0].append(one)
                spent[name][1].append(other)
    print(f"{'format':10} {'bytes':>6} {'messages/s':>11} {'alone':>11} {'ratio':>6}")
    for name, bodies, *_ in every:
        one, other = (given.messages / median(times) for times in spent[name])
        size = sum(map(len, bodies)) / len(bodies)
        print(f"{name:10} {size:6.0f} {one:11,.0f} {other:11,.0f} {one / other:6.2f}")


if __name__ == "__main__":
    main()
