"""Batches: the records that the kernel lays out are those of the Python road, to the byte."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.broker.processor.send_messages import BatchHead, SendMessages
from skylarkmq.protocol.batch import BatchItem, encode_batch
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.record import MIN_BLANK_SIZE
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.timer.rules import TimerRules
from tests.store.support import BORN, HOST, store_config

pytestmark = pytest.mark.skipif(kernel.compiled is None, reason=kernel.why_pure)

CONFIG = store_config(Path("/nowhere"))
MAKER = SendMessages("C1", HOST, CONFIG, DelayLevels(), TimerRules(CONFIG, lambda: 0))
FILE_SIZE = 1 << 16
STORED_MS = 1_700_000_000_123
IPV6 = bytes(range(20))

NAMES = st.sampled_from(["TAGS", "UNIQ_KEY", "KEYS", "XTAGS", "TIMER_DELAY_MS", "TIMER", "T"])
VALUES = st.text("aé\u20ac\U0001f600 \0")
PAIRS = st.builds(lambda name, value: f"{name}\x01{value}", NAMES, VALUES)
TEXTS = st.lists(PAIRS | st.text("T\x01a"), max_size=3).map(lambda pairs: "\x02".join(pairs))
PROPERTIES = st.builds(
    lambda text, end: (text + end).encode(), TEXTS, st.sampled_from(["", "\x02"])
)
BYTES = st.one_of(PROPERTIES, st.binary(max_size=20), st.just(b"p\x01" + b"v" * 32_760))
ITEMS = st.builds(BatchItem, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), BYTES)
INT32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Bodies of batch sends, some of them cut, or with a byte that is wrong."""
    body = bytearray(encode_batch(draw(st.lists(ITEMS, max_size=5))))
    if body and draw(st.integers(0, 2)) == 0:
        body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
    if body and draw(st.integers(0, 4)) == 0:
        del body[draw(st.integers(0, len(body) - 1)) :]
    return bytes(body)


def batch_at(position: int) -> AppendBatch:
    """A batch that begins at a position of the second log file."""

    def no_next_file() -> Any:
        raise AssertionError("the batch must not roll")

    made = AppendBatch(FILE_SIZE, no_next_file, lambda level, stored_ms: 0)
    file: Any = SimpleNamespace(start_offset=FILE_SIZE, wrote_position=position, size=FILE_SIZE)
    made.begin(file, STORED_MS)
    return made


def state(batch: AppendBatch, queue: ConsumeQueue) -> tuple[object, ...]:
    """What a batch would write and publish; the queue stands for itself."""
    units = [(unit[0].topic, *unit[1:]) for unit in batch.units]
    data = b"".join(batch._parts)
    return units, data, batch._position, batch.count, batch.size, queue.next_offset


@settings(max_examples=500)
@given(
    batches(),
    PROPERTIES,
    st.sampled_from([BORN, IPV6]),
    st.integers(0, FILE_SIZE),
    st.integers(0, 2**62),
    INT32.map(lambda flag: flag & ~0xD),  # of no transaction, and not compressed
    INT32,
)
def test_a_batch_of_records(
    body: bytes,
    batch_level: bytes,
    born_host: bytes,
    position: int,
    queue_offset: int,
    sys_flag: int,
    reconsume_times: int,
) -> None:
    head = BatchHead(batch_level, True, sys_flag, 0)
    packed, laid_out = batch_at(position), batch_at(position)
    queues = [ConsumeQueue("TopicTest", 3, Path()) for _ in range(2)]
    for queue in queues:
        queue.next_offset = queue_offset
    before = state(packed, queues[0])
    offsets = packed.pack_batch(
        queues[0], body, batch_level, -5, born_host, HOST, sys_flag, reconsume_times
    )
    try:
        parts = MAKER.batch_parts(body, head)
    except RemoteProtocolError:
        assert offsets is None, "what is refused is left to the road that words the refusal"
        parts = []
    if offsets is None:
        assert state(packed, queues[0]) == before
        return
    expected = [
        laid_out.add(
            queues[1], part, properties, -5, born_host, HOST, tags_code, flag, sys_flag,
            reconsume_times,
        )
        for part, properties, flag, tags_code in parts
    ]  # fmt: skip
    assert offsets == expected
    assert state(packed, queues[0]) == state(laid_out, queues[1])


def test_a_plain_batch_is_packed() -> None:
    """Against a kernel that is so careful that it packs nothing."""
    body = encode_batch(
        [BatchItem(7, b"body", b"UNIQ_KEY\x01A\x02TAGS\x01t"), BatchItem(0, b"", b"")]
    )
    queue = ConsumeQueue("T", 0, Path())
    assert batch_at(0).pack_batch(queue, body, b"CLUSTER\x01C", 5, BORN, HOST, 0, 0) is not None


@pytest.mark.parametrize("spare", [0, 1])
def test_records_end_before_the_room_of_a_blank(spare: int) -> None:
    body = encode_batch([BatchItem(0, b"body", b"")])
    size = 91 + len(b"body") + len("T") + len(b"A\x01b")
    batch = batch_at(FILE_SIZE - MIN_BLANK_SIZE - size + 1 - spare)
    packed = batch.pack_batch(ConsumeQueue("T", 0, Path()), body, b"A\x01b", 5, BORN, HOST, 0, 0)
    assert (packed is not None) == bool(spare)
