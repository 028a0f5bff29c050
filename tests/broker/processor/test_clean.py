"""Cleaning when an administrator asks for it."""

from __future__ import annotations

from typing import Any

from skylarkmq.broker.processor.admin.clean import CleanProcessor
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.group_rig import FakeConnection, request
from tests.store.clean_rig import CleanRig


def test_expired_log_files_go_at_any_hour() -> None:
    rig = CleanRig().start().fill(3).settle().again(73)
    processor = CleanProcessor(rig.store)
    peer: Any = FakeConnection()
    handler: Any = processor.handlers()[RequestCode.DELETE_EXPIRED_COMMITLOG]
    assert rig.spend(3).names() == [0, 1, 2]
    answer = handler(peer, request(RequestCode.DELETE_EXPIRED_COMMITLOG))
    assert answer.code == ResponseCode.SUCCESS
    assert rig.spend(3).names() == [2]
