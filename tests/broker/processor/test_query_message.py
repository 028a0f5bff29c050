"""Messages by key, by place, and what a topic holds."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from skylarkmq.broker.processor import query
from skylarkmq.broker.processor.query import QueryProcessor
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.bodies.topic import TopicStatsTable
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.record import decode_messages
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request

COMPLETE = "skylarkmq.complete"
FOREVER = 2**63 - 1
UNKNOWN = "can not find message, maybe time range not correct"


class Rig(GroupRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.processor = QueryProcessor(self.context)

    async def ask(self, code: int, **fields: Any) -> RemotingCommand:
        return await ask(self, self.processor, FakeConnection(), request(code, fields))

    async def query(self, key: str, **fields: Any) -> RemotingCommand:
        asked = {"topic": "T", "maxNum": 32, "beginTimestamp": 0, "endTimestamp": FOREVER}
        return await self.ask(12, key=key, **{**asked, **fields})

    def keyed(self, unique: str, keys: str = "", topic: str = "T", **changes: Any) -> None:
        properties = f"UNIQ_KEY\x01{unique}\x02KEYS\x01{keys}\x02".encode()
        self.put(topic, 0, unique.encode(), properties=properties, **changes)
        self.clock.advance(1)


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in decode_messages(answer.body or b"")]


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_messages_of_a_key_in_the_order_of_the_log(rig: Rig) -> None:
    for number in range(4):
        rig.keyed(f"U{number}", "order-1 订单" if number != 2 else "order-2")
    answer = await rig.query("order-1")
    assert (answer.code, answer.remark) == (0, None)
    assert bodies(answer) == [b"U0", b"U1", b"U3"]
    last = rig.store.writer.published_offset
    fields = answer.ext_fields
    assert 0 < int(fields["indexLastUpdatePhyoffset"]) < last
    assert int(fields["indexLastUpdateTimestamp"]) == rig.clock.now_ms() - 1000
    assert bodies(await rig.query("订单", maxNum=2)) == [b"U1", b"U3"], "the newest ones"
    assert bodies(await rig.query("U2")) == [b"U2"]


async def test_what_is_not_there_is_answered_with_22_and_how_far_the_index_is(rig: Rig) -> None:
    rig.keyed("U0", "k")
    for changes in (
        {"topic": "Other"},
        {"maxNum": 0},
        {"maxNum": -(2**31)},
        {"endTimestamp": 5},
        {"beginTimestamp": FOREVER},
        {"beginTimestamp": 9, "endTimestamp": 8},
    ):
        answer = await rig.query("k", **changes)
        assert (answer.code, answer.remark) == (22, UNKNOWN), changes
        assert not answer.body
        assert answer.ext_fields["indexLastUpdatePhyoffset"] == "0"
    assert (await rig.query("")).code == 22


async def test_an_answer_says_whether_it_has_all_there_is(rig: Rig) -> None:
    for number in range(5):
        rig.keyed(f"U{number}", "k")
    assert (await rig.query("k")).ext_fields[COMPLETE] == "true"
    assert (await rig.query("nothing")).ext_fields[COMPLETE] == "true"
    assert (await rig.query("k", maxNum=6)).ext_fields[COMPLETE] == "true"
    assert COMPLETE not in (await rig.query("k", maxNum=5)).ext_fields, "there may be a sixth"
    assert COMPLETE not in (await rig.query("k", maxNum=0)).ext_fields


async def test_times_bound_a_query(rig: Rig) -> None:
    start = rig.clock.now_ms()
    for number in range(5):
        rig.keyed(f"U{number}", "k")
    answer = await rig.query("k", beginTimestamp=start + 1000, endTimestamp=start + 3000)
    assert bodies(answer) == [b"U1", b"U2", b"U3"]


async def test_what_waits_is_found_under_its_own_topic_only_when_it_is_there(rig: Rig) -> None:
    """A parked message is indexed where it lies; a retried one under the topic of its group."""
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"):
        rig.keyed("U0", "k", topic)
        assert (await rig.query("k")).code == 22
        assert bodies(await rig.query("k", topic=topic)) == [b"U0"]
    rig.keyed("U1", "k", "%RETRY%g")
    rig.keyed("U2", "k", "%DLQ%g")
    rig.keyed("U3", "k")
    assert bodies(await rig.query("U1", topic="%RETRY%g", _UNIQUE_KEY_QUERY="true")) == [b"U1"]
    assert bodies(await rig.query("k", topic="%DLQ%g")) == [b"U2"]
    assert bodies(await rig.query("k")) == [b"U3"]


async def test_the_message_of_a_transaction_is_found_by_its_keys_and_not_what_was_given_up(
    rig: Rig,
) -> None:
    commit, rollback = (
        MessageSysFlag.TRANSACTION_COMMIT_TYPE,
        MessageSysFlag.TRANSACTION_ROLLBACK_TYPE,
    )
    rig.keyed("U0", "k", sys_flag=commit)
    rig.keyed("U1", "k", sys_flag=rollback)
    assert bodies(await rig.query("k")) == [b"U0"]


async def test_unique_ids_are_counted_by_the_broker_s_own_limit(rig: Rig) -> None:
    for _ in range(3):
        rig.keyed("U0", "k")  # one message sent again twice
    assert len(bodies(await rig.query("U0", maxNum=1))) == 1
    assert len(bodies(await rig.query("U0", maxNum=1, _UNIQUE_KEY_QUERY="true"))) == 3
    assert len(bodies(await rig.query("U0", maxNum=1, _UNIQUE_KEY_QUERY="false"))) == 1


async def test_counts_are_clamped_before_anything_is_read() -> None:
    rig = Rig()
    config = rig.store.config
    object.__setattr__(config, "default_query_max_num", 2)
    rig.start()
    for number in range(80):
        rig.keyed(f"U{number:02}", "k")
    assert len(bodies(await rig.query("k", maxNum=2**31 - 1))) == config.max_msgs_num_batch == 64
    answer = await rig.query("k", maxNum=2**31 - 1, _UNIQUE_KEY_QUERY="true")
    assert bodies(answer) == [b"U78", b"U79"]


async def test_a_message_whose_key_has_the_same_hash_is_no_answer(rig: Rig) -> None:
    rig.keyed("U0", "BBBB")  # "AaAa", "AaBB" and "BBBB" have one hash in Java
    rig.keyed("U1", "AaBB")
    assert bodies(await rig.query("AaBB")) == [b"U1"]
    assert bodies(await rig.query("BBBB")) == [b"U0"]
    assert bodies(await rig.query("BBBB", maxNum=1)) == [b"U0"], "the next round finds it"
    assert (await rig.query("AaAa")).code == 22


async def test_an_answer_fits_into_a_frame(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        rig.keyed(f"U{number:02}", "k")
    size = len((await rig.query("U00")).body or b"")
    monkeypatch.setattr(query, "BODY_SIZE_MAX", 5 * size)
    answer = await rig.query("k")
    assert bodies(answer) == [f"U{number:02}".encode() for number in range(7, 12)]
    assert "older messages are left out" in (answer.remark or "")
    assert COMPLETE not in answer.ext_fields
    monkeypatch.setattr(query, "BODY_SIZE_MAX", 5)
    assert bodies(await rig.query("k")) == [b"U11"], "one message is always answered"


async def test_the_remark_tells_when_the_index_is_built_again(rig: Rig) -> None:
    rig.keyed("U0", "k")
    rig.workers.run_all()
    rig.stop()
    for name in rig.files.list(rig.store.paths.index):
        rig.files.unlink(rig.store.paths.index / name)
    again = Rig(files=rig.files)
    again.files.fail("allocate", error=errno.ENOSPC, path="index")
    again.start()
    again.workers.index.run_all()
    answer = await again.query("k")
    assert answer.code == 22
    assert "the key index is being built again" in (answer.remark or "")
    assert COMPLETE not in answer.ext_fields
    again.clock.advance(1)  # it tries again
    again.workers.run_all()
    answer = await again.query("k")
    assert (bodies(answer), answer.remark) == ([b"U0"], None)


async def test_without_the_index_the_remark_names_the_key() -> None:
    rig = Rig(message_index_enable=False)
    rig.start()
    rig.keyed("U0", "k")
    answer = await rig.query("k")
    assert answer.code == 22
    assert "messageIndexEnable" in (answer.remark or "")


async def test_an_index_that_can_not_be_read_is_said_so(rig: Rig) -> None:
    rig.keyed("U0", "k")
    rig.workers.run_all()
    rig.files.fail("pread", path="index")
    answer = await rig.query("k")
    assert answer.code == 1
    assert "key index" in (answer.remark or "")
    assert bodies(await rig.query("k")) == [b"U0"]


async def test_view_answers_the_record_at_a_place(rig: Rig) -> None:
    rig.keyed("U0")
    rig.keyed("U1")
    place = rig.results[1].physical_offset
    assert bodies(await rig.ask(33, offset=place)) == [b"U1"]
    for offset in (place + 1, place - 1, -1, rig.store.writer.published_offset, FOREVER):
        answer = await rig.ask(33, offset=offset)
        assert answer.code == 1
        assert answer.remark == f"can not find message by the offset, {offset}"


async def test_under_sync_flush_only_what_is_durable_is_answered() -> None:
    rig = Rig(flush_disk_type="SYNC_FLUSH")
    rig.start()
    rig.files.fail("datasync", path="commitlog")
    rig.keyed("U0", "k")
    rig.workers.run_all()
    assert (await rig.query("k")).code == 22
    assert (await rig.ask(33, offset=0)).code == 1


async def test_what_a_topic_holds(rig: Rig) -> None:
    rig.topic("T", queues=20)
    times: list[int] = []
    for _ in range(3):
        times.append(rig.clock.now_ms())
        rig.put("T", 1)
        rig.clock.advance(10)
    answer = await rig.ask(202, topic="T")
    assert answer.code == 0
    table = decode_body(TopicStatsTable, answer.body or b"").offset_table
    assert [queue.queue_id for queue, _ in table] == list(range(20))
    assert {queue.broker_name for queue, _ in table} == {rig.config.broker_name}
    found = {queue.queue_id: item for queue, item in table}
    written = found.pop(1)
    assert (written.min_offset, written.max_offset) == (0, 3)
    assert written.last_update_timestamp == times[-1]
    for item in found.values():
        assert (item.min_offset, item.max_offset, item.last_update_timestamp) == (0, 0, 0)
    assert list(rig.store.queues.queues) == [("T", 1)], "asking allocates nothing"


async def test_an_unknown_topic_is_answered_with_17(rig: Rig) -> None:
    answer = await rig.ask(202, topic="nope")
    assert (answer.code, answer.remark) == (17, "topic['nope'] not exist")


@pytest.mark.parametrize("code", [12, 33, 202])
async def test_missing_fields_are_answered_with_1(rig: Rig, code: int) -> None:
    answer = await rig.ask(code, maxNum="x", offset="\u0661")
    assert answer.code == 1
