"""The messages in what a sink's window is handed."""

from __future__ import annotations

from collections.abc import Sequence

from skylarkmq.protocol.batch import BatchItem, encode_batch, split_batch
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.spark.writing.window import Batch, Outgoing


def batch_of(messages: Sequence[Outgoing]) -> Batch:
    """Return messages as one request sends them; none may be compressed or delayed."""
    items = [BatchItem(it.flag, it.body, it.properties) for it in messages]
    size = sum(len(message.body) for message in messages)
    first, last = messages[0], messages[-1]
    return Batch(encode_batch(items), len(items), size, first.unique_key, last.unique_key)


def messages_of(what: Outgoing | Batch) -> list[Outgoing]:
    """Return a request's messages, and check what it says of them."""
    if isinstance(what, Outgoing):
        return [what]
    found = [
        Outgoing(
            item.body,
            item.properties,
            decode_properties(item.properties.decode())["UNIQ_KEY"],
            item.flag,
        )
        for item in split_batch(what.body)
    ]
    assert what == batch_of(found)
    return found


def request_of(messages: Sequence[Outgoing]) -> Outgoing | Batch:
    """Return messages as one request."""
    return messages[0] if len(messages) == 1 else batch_of(messages)
