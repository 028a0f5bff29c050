"""Cleaning when an administrator asks for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from skylarkmq.broker.processor.admin.broker import AdminBrokerProcessor
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.group_rig import FakeConnection, request
from tests.store.clean_rig import CleanRig


def test_expired_log_files_go_at_any_hour() -> None:
    rig = CleanRig().start().fill(3).settle().again(73)
    others = dict.fromkeys(Context.__slots__)
    context: Any = SimpleNamespace(**{**others, "store": rig.store})
    processor = AdminBrokerProcessor(context, *cast(Any, [None] * 4))
    peer: Any = FakeConnection()
    handler: Any = processor.handlers()[RequestCode.DELETE_EXPIRED_COMMITLOG]
    assert rig.spend(3).names() == [0, 1, 2]
    answer = handler(peer, request(RequestCode.DELETE_EXPIRED_COMMITLOG))
    assert answer.code == ResponseCode.SUCCESS
    assert rig.spend(3).names() == [2]


def test_files_of_queues_follow_the_log_again() -> None:
    rig = CleanRig().start().fill(3).settle()
    told: list[int] = []
    rig.store.cleaning._queue_cleaner.expire = told.append  # type: ignore[method-assign]
    others = dict.fromkeys(Context.__slots__)
    context: Any = SimpleNamespace(**{**others, "store": rig.store})
    processor = AdminBrokerProcessor(context, *cast(Any, [None] * 4))
    handler: Any = processor.handlers()[RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE]
    answer = handler(FakeConnection(), request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))
    assert answer.code == ResponseCode.SUCCESS
    assert told == [rig.store.commit_log.min_offset]
