"""A store that lost a table: the start says so and what follows, and the messages stay."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields


async def test_topics_with_messages_and_without_settings_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        assert (await client.call(310, send_fields("orders"), b"x")).code == 0
        await client.close()
    for path in (tmp_path / "config").glob("topics.json*"):
        path.unlink()
    with caplog.at_level(logging.WARNING):
        async with live_broker(tmp_path) as broker:
            (said,) = [text for text in caplog.messages if "no entry in" in text]
            assert "1 topics" in said and "orders" in said and "topics.json" in said
            client = await RawClient.open(broker.listen_address)
            assert (await client.call(11, pull_fields("orders"))).code == 17
            answer = await client.call(316)
            assert answer.code == 1, "no command removes messages because a table was lost"
            assert "1 topics" in (answer.remark or "") and "orders" in (answer.remark or "")
            assert (await client.call(310, send_fields("orders"), b"y")).code == 0
            assert (await client.call(11, pull_fields("orders"))).code == 0
            assert (await client.call(316)).code == 0, "it is known again"
            assert (await client.call(215, {"topic": "orders"})).code == 0
            assert (await client.call(316)).code == 0
            await client.close()


async def test_lost_groups_and_offsets_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        assert (await client.call(310, send_fields("orders"), b"x")).code == 0
        await client.close()
    assert "is missing or empty" not in caplog.text
    for path in (tmp_path / "config").glob("subscriptionGroup.json*"):
        path.unlink()
    for path in (tmp_path / "config").glob("consumerOffset.json*"):
        path.write_bytes(b"")
    for expected in (2, 0):
        caplog.clear()
        async with live_broker(tmp_path):
            said = [text for text in caplog.messages if "is missing or empty" in text]
            assert len(said) == expected
            if said:
                assert "subscriptionGroup.json" in said[0] and "default settings" in said[0]
                assert "consumerOffset.json" in said[1] and "consumeFromWhere" in said[1]
