"""How far each queue is read: a set of queue offsets, and a range of one queue.

Every offset here is the NEXT one to read, and an end is exclusive: [start, end). Written as JSON

    {"v":1,"o":{"T":{"broker-a":{"0":17,"1":4}}}}     topic, broker name, queue id as text

into Spark's checkpoints, so the form is versioned and its bytes are the same for equal offsets:
Spark compares texts to see that nothing is new. Where it is known which message stands before an
offset, the last one that was read, its fingerprint stands there too, as three numbers:

    {"v":2,"o":{"T":{"broker-a":{"0":17}}},"f":{"T":{"broker-a":{"0":[41088,1767225600000,7]}}}}

Pure; imports no pyspark. Immutable and picklable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar, cast

from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.message import MessageQueue

T = TypeVar("T")
QueueKey = MessageQueue
"""(topic, broker_name, queue_id)"""

PLAIN_VERSION: Final = 1
VERSION: Final = 2
"""Of offsets with fingerprints."""
INT64_MAX: Final = 2**63 - 1
INT32_MAX: Final = 2**31 - 1
_QUEUE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)

NestedOffsets = dict[str, dict[str, dict[str, int]]]
"""topic -> broker name -> queue id as text -> offset"""


class OffsetFormatError(ValueError):
    """A text or document is no set of queue offsets; the text says what is wrong and where."""


class OffsetRange(NamedTuple):
    """The messages [start, end) of one queue: what one task reads. Picklable."""

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int

    @property
    def key(self) -> QueueKey:
        """The queue."""
        return QueueKey(self.topic, self.broker_name, self.queue_id)

    @property
    def message_count(self) -> int:
        """How many messages the range holds, before any filter."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{describe(self.key)} [{self.start}, {self.end})"


def describe(key: QueueKey) -> str:
    """Return a queue as errors and logs name it."""
    return f"queue {key.queue_id} of topic {key.topic} on broker {key.broker_name}"


class QueueOffsets(Mapping[QueueKey, int]):
    """An immutable mapping of queues to their next offsets, in the order of the keys.

    Equal to another one that holds the same offsets and fingerprints, and to any other mapping that
    holds the same offsets.

    Attributes:
        before: the message before the offset, of queues where it is known.
    """

    __slots__ = ("_offsets", "before")
    _offsets: dict[QueueKey, int]

    def __init__(
        self,
        offsets: Mapping[QueueKey, int] | Iterable[tuple[QueueKey, int]] = (),
        before: Mapping[QueueKey, Fingerprint] | None = None,
    ) -> None:
        """Take the offsets; keys may be plain tuples. Those of queues not named count for nothing.

        Args:
            before: None: those of `offsets`, if it has some.

        Raises:
            OffsetFormatError: an offset below 0, or a negative queue.
        """
        found = {QueueKey(*key): offset for key, offset in dict(offsets).items()}
        for key, offset in found.items():
            if not 0 <= offset <= INT64_MAX:
                raise OffsetFormatError(f"{describe(key)}: {offset} is no queue offset")
            if not 0 <= key.queue_id <= INT32_MAX:
                raise OffsetFormatError(f"{describe(key)}: {key.queue_id} is no queue")
        self._offsets = dict(sorted(found.items()))
        if before is None:
            before = offsets.before if isinstance(offsets, QueueOffsets) else {}
        self.before: Mapping[QueueKey, Fingerprint] = {
            key: before[key] for key, offset in self._offsets.items() if offset and key in before
        }

    @classmethod
    def from_json(cls, document: str | bytes | Mapping[str, Any]) -> QueueOffsets:
        """Return the offsets of a text, or of the object that Spark has parsed already.

        Raises:
            OffsetFormatError: no JSON, another version, or anything but the layout above.
        """
        if isinstance(document, str | bytes):
            try:
                document = json.loads(document)
            except (ValueError, RecursionError) as error:
                raise OffsetFormatError(f"offsets are no JSON: {error}") from error
        if not isinstance(document, Mapping):
            raise OffsetFormatError(f"offsets are a JSON object, not {document!r:.80}")
        version = document.get("v")
        if type(version) is not int or version not in (PLAIN_VERSION, VERSION):
            raise OffsetFormatError(
                f"offsets of version {version!r} cannot be read, this release knows {VERSION}: "
                "the checkpoint was written by a newer release, or by another source"
            )
        parts = ("v", "o") if version == PLAIN_VERSION else ("v", "o", "f")
        if set(document) != set(parts):
            raise OffsetFormatError(
                f"offsets hold {', '.join(parts)}, not {', '.join(map(str, document))}"
            )
        return cls(_flattened(document["o"]), dict(_fingerprints(document.get("f", {}))))

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into a checkpoint; keys stand in their order."""
        if not self.before:  # as releases before this one read it
            return {"v": PLAIN_VERSION, "o": self.nested()}
        before = _nested((key, list(each)) for key, each in self.before.items())
        return {"v": VERSION, "o": self.nested(), "f": before}

    def text(self) -> str:
        """Return the JSON text; equal offsets give equal texts."""
        return json.dumps(self.to_json(), separators=(",", ":"), sort_keys=True)

    def nested(self) -> NestedOffsets:
        """Return the offsets by topic, broker name and queue id, each in order."""
        return _nested(self._offsets.items())

    def updated(self, changes: Mapping[QueueKey, int]) -> QueueOffsets:
        """Return these offsets with some replaced or added; of those no fingerprint is known."""
        before = {key: each for key, each in self.before.items() if key not in changes}
        return QueueOffsets({**self._offsets, **changes}, before)

    def without(self, keys: Iterable[QueueKey]) -> QueueOffsets:
        """Return these offsets but for some queues."""
        gone = set(keys)
        left = {key: at for key, at in self._offsets.items() if key not in gone}
        return QueueOffsets(left, self.before)

    def knowing(self, before: Mapping[QueueKey, Fingerprint]) -> QueueOffsets:
        """Return these offsets with more fingerprints."""
        return QueueOffsets(self._offsets, {**self.before, **before})

    def __getitem__(self, key: QueueKey) -> int:
        return self._offsets[key]

    def __iter__(self) -> Iterator[QueueKey]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, QueueOffsets):
            return self._offsets == other._offsets and self.before == other.before
        return self._offsets == other if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._offsets.items()))

    def __repr__(self) -> str:
        return f"QueueOffsets({self.text()})"

    def __reduce__(self) -> tuple[type[QueueOffsets], tuple[Mapping[QueueKey, Any], ...]]:
        return QueueOffsets, (self._offsets, self.before)


def queue_id_of(text: object) -> int:
    """Return the queue id that a key of a document names.

    Raises:
        OffsetFormatError: it is no whole number in its shortest form, or too large.
    """
    if isinstance(text, str) and _QUEUE_ID.fullmatch(text) and int(text) <= INT32_MAX:
        return int(text)
    raise OffsetFormatError(f"a queue id is a number in quotes, not {text!r:.40}")


def flatten_queues(nested: object, name: str = "the document") -> Iterator[tuple[QueueKey, Any]]:
    """Yield each queue of a document by topic, broker name and queue id, with its value as it is.

    Raises:
        OffsetFormatError: not that layout.
    """
    for topic, brokers in _items(nested, name):
        for broker, queues in _items(brokers, f"topic {topic}"):
            for queue, value in _items(queues, f"topic {topic}, broker {broker}"):
                yield QueueKey(topic, broker, queue_id_of(queue)), value


def _flattened(nested: object) -> Iterator[tuple[QueueKey, int]]:
    for key, offset in flatten_queues(nested, "o"):
        if type(offset) is not int:
            raise OffsetFormatError(f"{describe(key)}: {offset!r:.40} is no queue offset")
        yield key, offset


def _fingerprints(nested: object) -> Iterator[tuple[QueueKey, Fingerprint]]:
    for key, value in flatten_queues(nested, "f"):
        try:
            yield key, Fingerprint.from_json(value)
        except ValueError as error:
            raise OffsetFormatError(f"{describe(key)}: {error}") from error


def _nested(values: Iterable[tuple[QueueKey, T]]) -> dict[str, dict[str, dict[str, T]]]:
    nested: dict[str, dict[str, dict[str, T]]] = {}
    for (topic, broker, queue_id), value in sorted(
        values, key=lambda item: (item[0][0], item[0][1], str(item[0][2]))
    ):
        nested.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = value
    return nested


def _items(value: object, where: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise OffsetFormatError(f"{where} is a JSON object, not {value!r:.40}")
    for key, inner in cast("Mapping[object, Any]", value).items():
        if not isinstance(key, str) or not key:
            raise OffsetFormatError(f"{where} has the name {key!r:.40}")
        yield key, inner
