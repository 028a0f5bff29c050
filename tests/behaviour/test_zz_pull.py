import pytest
from skylarkmq.client import Client, Producer
from tests.behaviour.support import bodies, numbered, received, send_numbered


@pytest.mark.parametrize("n", range(60))
async def test_offsets_outlive(n: int, producer: Producer, client: Client, topic: str, group: str) -> None:
    for prefix in ("first", "second"):
        await send_numbered(producer, topic, prefix, 10)
        got = await received(client, topic, group, 10)
        assert bodies(got) == numbered(prefix, 10)
