"""When sends are answered: behind the topic table, where their topic is new."""

from __future__ import annotations

import errno
from pathlib import Path

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.store.files import DiskFiles
from tests.support.live_broker import broker_config
from tests.support.raw_client import RawClient, send_fields

SEND = 310


class FullForTables(DiskFiles):
    """A disk that has no room for topic tables until it is told otherwise."""

    is_full = False

    def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
        if self.is_full and path.name == "topics.json":
            raise OSError(errno.ENOSPC, "no space left on the device", str(path))
        super().replace(path, data, backup=backup)


async def test_no_message_is_acknowledged_while_its_topic_is_not_on_the_disk(
    tmp_path: Path,
) -> None:
    files = FullForTables()
    controller = BrokerController(broker_config(tmp_path), files=files)
    await controller.start()
    try:
        client = await RawClient.open(controller.listen_address)
        files.is_full = True
        for _ in range(3):  # the first makes the topic; a later one must not pass for durable
            answer = await client.call(SEND, send_fields("T"), b"body")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "T" in controller.state.topics.table

        files.is_full = False
        answer = await client.call(SEND, send_fields("T"), b"body")
        assert answer.code == 0
        assert b'"T"' in (tmp_path / "config" / "topics.json").read_bytes()
        answer = await client.call(SEND, send_fields("T"), b"body")
        assert answer.code == 0
        await client.close()
    finally:
        await controller.stop()
