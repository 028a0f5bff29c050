"""A broker on any loopback address can be found and reached by what it tells its clients."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from skylarkmq.client import Message, Producer
from tests.support.live_broker import live_broker, namesrv_of


def _can_bind(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("address", ["localhost", "127.0.0.2", "::1"])
async def test_what_is_told_can_be_reached(tmp_path: Path, address: str) -> None:
    if address != "localhost" and not _can_bind(address):
        pytest.skip(f"this machine has no {address}")
    async with live_broker(tmp_path, bind_address=address) as broker:
        namesrv = namesrv_of(broker)
        if ":" in address:
            namesrv = "[{}]:{}".format(*broker.namesrv_address or ())
        async with Producer(namesrv_addr=namesrv) as producer:
            result = await producer.send(Message("T", "body"))
    assert result.queue_offset == 0
