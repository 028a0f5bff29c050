"""What the send road counts."""

from __future__ import annotations

from pathlib import Path

from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, send_fields

SEND = 310


async def test_a_delayed_message_counts_under_the_topic_it_was_sent_to(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"0123")
        for topic in ("T", "T", "U"):
            answer = await client.call(SEND, send_fields(topic, 0, "DELAY\x0118"), b"01234567")
            assert answer.code == 0, answer.remark
        counted = {
            key: (traffic.count, traffic.bytes)
            for key, traffic in broker.state.stats.topics_in.items()
        }
        assert counted == {
            ("T", "normal"): (1, 4),
            ("T", "delay"): (2, 16),
            ("U", "delay"): (1, 8),
        }
        await client.close()
