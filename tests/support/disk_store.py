"""Our store in a folder of the real disk; its workers and its clock move when the test says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skylarkmq.common.files import DiskFiles
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.properties import encode_properties, join_properties
from skylarkmq.protocol.record import decode_message, decode_messages
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import (
    GetMessageStatus,
    MessageInner,
    PutMessageResult,
    PutMessageStatus,
)
from skylarkmq.store.upkeep.recovery import RecoveryReport
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.store_samples import (
    DELAY_LEVEL,
    SCHEDULE_TOPIC,
    Command,
    Fields,
    expected,
    from_ours,
)
from tests.support.workers import manual_store_workers

STEP_S = 0.05  # between two messages; index items have whole seconds
READ_AT_A_TIME = 32
COMMIT_S = 1.0  # in which a buffered log is committed


class DiskStore:
    """A store that takes the commands of `store_samples`. `sizes` are RocketMQ's keys."""

    def __init__(
        self, root: Path, sizes: dict[str, int], start_ms: int = START_MS, **config: Any
    ) -> None:
        self.root = root
        self.clock = ManualClock(start_ms=start_ms)
        self.workers = manual_store_workers()
        self.store = MessageStore(
            StoreConfig(
                store_path_root_dir=root,
                mapped_file_size_commit_log=sizes["mappedFileSizeCommitLog"],
                mapped_file_size_consume_queue=sizes["mappedFileSizeConsumeQueue"],
                max_message_size=sizes["maxMessageSize"],
                max_hash_slot_num=sizes["maxHashSlotNum"],
                max_index_num=sizes["maxIndexNum"],
                **config,
            ),
            DiskFiles(),
            self.clock,
            self.workers.workers,
        )

    def start(self) -> RecoveryReport:
        """Recover and take writes; the index is caught up with."""
        report = self.store.load()
        self.store.start()
        self.settle()
        return report

    def settle(self) -> None:
        """Let everything that is under way come to an end."""
        self.workers.run_all()
        self.clock.advance(COMMIT_S)
        self.workers.run_all()

    def stop(self) -> None:
        """A clean stop."""
        self.store.stop_writing()
        self.workers.run_all()
        self.store.close()

    def run(self, command: Command) -> list[Fields]:
        """Store a command's messages and return what must be read back of them."""
        if command["op"] == "put":
            results: list[PutMessageResult] = []
            self.store.put_message(_inner(command), results.append)
            self.workers.run_all()
            (result,) = results
            status, queue_offset, physical_offset = result[:3]
        else:
            status, queue_offset, physical_offset = self._batch(command)
        assert status is PutMessageStatus.PUT_OK
        stored = expected(
            command,
            {
                "queue_offset": queue_offset,
                "physical_offset": physical_offset,
                "store_timestamp": self.clock.now_ms(),
            },
        )
        self.clock.advance(STEP_S)
        self.workers.run_all()
        return stored

    def _batch(self, command: Command) -> tuple[PutMessageStatus, int, int]:
        inners = [
            _inner({**command, **part}, _text(command["properties"]))
            for part in command["messages"]
        ]
        batch = self.store.begin()
        queue = self.store.queues.open(command["topic"], command["queue_id"])
        queue_offset = queue.next_offset
        batch.reserve(sum(len(inner.body) + len(inner.properties) + 200 for inner in inners))
        places = [batch.add_message(queue, inner) for inner in inners]
        answers: list[PutMessageStatus] = []
        self.store.commit(answers.append)
        self.workers.run_all()
        return answers[0], queue_offset, places[0]

    def read(self) -> dict[tuple[str, int], list[Fields]]:
        """All messages of all queues that have some."""
        queues: dict[tuple[str, int], list[Fields]] = {}
        for queue in list(self.store.queues.queues.values()):
            if queue.max_offset > queue.min_offset:
                queues[queue.topic, queue.queue_id] = self._read(queue.topic, queue.queue_id)
        return queues

    def _read(self, topic: str, queue_id: int) -> list[Fields]:
        store = self.store
        offset, messages = store.min_offset(topic, queue_id), list[Fields]()
        while offset < store.max_offset(topic, queue_id):
            got = store.get_message(topic, queue_id, offset, READ_AT_A_TIME)
            assert got.status is GetMessageStatus.FOUND, (topic, queue_id, offset, got)
            for message in decode_messages(b"".join(got.views)):
                units = store.queue_units(topic, queue_id, message.queue_offset, 1)
                messages.append(from_ours(message, units[0].tags_code))
            offset = got.next_begin_offset
        return messages

    def look(self, physical_offset: int) -> Fields:
        """The message at a place of the log, without its tags code."""
        found: list[bytes | None] = []
        self.store.read_records([physical_offset], lambda got, _: found.extend(got or ()))
        self.workers.run_all()
        assert found[0] is not None
        return from_ours(decode_message(found[0]), None)

    def query(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = 1 << 62) -> list[int]:
        """Places of the messages with a key, oldest first."""
        answers: list[Any] = []
        self.store.index.query(
            topic, key, 64, begin_ms, end_ms, lambda answer, error: answers.append(answer or error)
        )
        self.workers.run_all()
        assert not answers[0].missing
        return sorted(answers[0].offsets)


def _inner(command: Command, batch_level: bytes = b"") -> MessageInner:
    properties = dict(command["properties"])
    topic, queue_id, level = command["topic"], command["queue_id"], 0
    if "DELAY" in properties:  # as the broker does
        properties |= {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        topic, queue_id, level = SCHEDULE_TOPIC, DELAY_LEVEL - 1, DELAY_LEVEL
    return MessageInner(
        topic,
        queue_id,
        command["body"].encode(),
        join_properties(_text(properties), batch_level),
        _host(command["born_host"]),
        _host(command["store_host"]),
        command["born_timestamp"],
        tags_code=tags_code(properties["TAGS"]) if "TAGS" in properties else 0,
        flag=command.get("flag", 0),
        sys_flag=command.get("sys_flag", 0),
        reconsume_times=command.get("reconsume_times", 0),
        prepared_transaction_offset=command.get("prepared_transaction_offset", 0),
        delay_level=level,
    )


def _text(properties: dict[str, str]) -> bytes:
    return encode_properties(properties).encode()


def _host(text: str) -> bytes:
    ip, port = text.split(" ")
    return HostAddress(ip, int(port)).pack()
