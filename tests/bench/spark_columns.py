# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Measures how records become Arrow columns, without a broker and without Spark.

    python -m tests.bench.spark_columns [--count 20000] [--size 1024] [--rounds 9]

    decode     records as pulls bring them into batches of all columns: the decode of the source
    body       the same for the column `body` alone
    log        a log file in the system's cache into batches of all columns: the log reader
    messages   the same records as the SDK's messages, Python objects
    lists      pyarrow alone: the columns of these batches from ready Python lists
    copy       pyarrow alone: the columns of these batches copied from ready buffers

The roads take turns; medians of the rounds, in CPU time, so that what else the machine does costs
little. Then `decode` runs in two processes at once: how many times as much as one they do, given a
core each. Prints; asserts nothing.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from skylarkmq import kernel
from skylarkmq.protocol.record import decode_messages, encode_record
from skylarkmq.spark.batches import BatchBuilder
from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.spark.log.source import CommitLogReader
from skylarkmq.spark.schema import COLUMNS, LOG_COLUMNS, names
from tests.bench.report import machine

PULL_COUNT = 800
"""Messages of 1 KiB in a pull of 1 MiB."""
HOST = bytes((10, 0, 0, 1, 0, 0, 0x2A, 0x9F))
MB = 1e6


def records(count: int, size: int) -> list[bytes]:
    """Records as a broker stores them: with unique key, tag and key."""
    made: list[bytes] = []
    place = 0
    for number in range(count):
        properties = (
            b"UNIQ_KEY\x017F0000010000%020d\x02TAGS\x01bench\x02KEYS\x01k%d\x02WAIT\x01true"
        )
        one = encode_record(
            queue_id=0, flag=0, queue_offset=number, physical_offset=place, sys_flag=0,
            born_timestamp=1_760_000_000_000 + number, born_host=HOST,
            store_timestamp=1_760_000_000_001 + number, store_host=HOST, reconsume_times=0,
            prepared_transaction_offset=0, body=number.to_bytes(8, "big") * (size // 8),
            topic=b"bench-send", properties=properties % (number, number),
        )  # fmt: skip
        made.append(one)
        place += len(one)
    return made


def decode(blocks: list[bytes], columns: tuple[str, ...]) -> list[pa.RecordBatch]:
    """Build batches of blocks of records."""
    builder = BatchBuilder(columns)
    made: list[pa.RecordBatch] = []
    for block in blocks:
        made += builder.add(block, broker_name="broker-a", start=0, end=2**62)
    last = builder.finish()
    return made if last is None else [*made, last]


def read_log(reader: CommitLogReader) -> int:
    """Read a store's whole log."""
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def of_lists(columns: list[list[list[Any]]], schema: pa.Schema) -> None:
    """Build batches of ready lists."""
    for batch in columns:
        arrays: list[Any] = [
            pa.array(values, field.type) for values, field in zip(batch, schema, strict=True)
        ]
        pa.RecordBatch.from_arrays(arrays, schema=schema)


def copied(batches: list[pa.RecordBatch]) -> None:
    """Copy batches, buffer by buffer."""
    for batch in batches:
        half = batch.num_rows // 2
        pa.Table.from_batches([batch.slice(0, half), batch.slice(half)]).combine_chunks()


def cpu_s(road: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    started = time.process_time()
    road()
    return time.process_time() - started


def repeated(count: int, size: int, times: int) -> float:
    """Decode in this process so many times; return the messages a second of its CPU time."""
    blocks = blocks_of(records(count, size))
    decode(blocks, names(COLUMNS))
    started = time.process_time()
    for _ in range(times):
        decode(blocks, names(COLUMNS))
    return count * times / (time.process_time() - started)


def blocks_of(every: list[bytes]) -> list[bytes]:
    """Join records as pulls bring them."""
    starts = range(0, len(every), PULL_COUNT)
    return [b"".join(every[start : start + PULL_COUNT]) for start in starts]


def scaling(count: int, size: int, rounds: int) -> float:
    """Return how many times as much two processes decode at once as one does."""
    found: list[float] = []
    run = partial(repeated, count, size, max(1, 200_000 // count))
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for _ in range(rounds):
            one = pool.submit(run).result()
            both = [pool.submit(run) for _ in range(2)]
            found.append(sum(each.result() for each in both) / one)
    return median(found)


def measure(count: int, size: int, rounds: int, folder: Path) -> None:
    """Time the roads in turn and print a table."""
    every = records(count, size)
    blocks = blocks_of(every)
    log = folder / "commitlog" / f"{0:020d}"
    log.parent.mkdir()
    log.write_bytes(b"".join(every))
    reader = CommitLogReader(LogOptions.parse({"path": str(log)}), names(LOG_COLUMNS))
    batches = decode(blocks, names(COLUMNS))
    lists = [[column.to_pylist() for column in batch.columns] for batch in batches]
    roads: dict[str, Callable[[], object]] = {
        "decode": lambda: decode(blocks, names(COLUMNS)),
        "body": lambda: decode(blocks, ("body",)),
        "log": lambda: read_log(reader),
        "messages": lambda: [decode_messages(block) for block in blocks],
        "lists": lambda: of_lists(lists, batches[0].schema),
        "copy": lambda: copied(batches),
    }
    spent: dict[str, list[float]] = {name: [] for name in roads}
    for number in range(rounds + 1):
        for name, road in roads.items():
            one = cpu_s(road)
            if number:  # the first round does not count
                spent[name].append(one)
    print(f"{machine()}; the kernel: {kernel.road}; {count:,} messages of {size} bytes")
    print(f"{'':<10}{'CPU us':>9}{'messages/s':>13}{'MB/s':>8}  of decode")
    floor = median(spent["decode"])
    for name, times in spent.items():
        one = median(times) / count
        rate = f"{1 / one:>13,.0f}{size / one / MB:>8,.0f}"
        print(f"{name:<10}{one * MB:>9.2f}{rate}  {median(times) / floor:.2f}")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000, help="messages")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="skylarkmq-bench-"))
    try:
        measure(options.count, options.size, options.rounds, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    times = scaling(options.count, options.size, options.rounds)
    print(f"decode in two processes: {times:.2f} times one")


if __name__ == "__main__":
    main()
