"""SQL92 filters over a real broker: registration, pulls of both kinds, held pulls, refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.record import decode_messages
from tests.support.heartbeats import consumer_data, heartbeat, subscription
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

TOPIC = "orders"
GROUP = "cg_sql"


async def _send(client: RawClient, *texts: str) -> None:
    """Store messages with these properties, `name=value` pairs between blanks."""
    for text in texts:
        properties = "".join(f"{pair.replace('=', chr(1))}\x02" for pair in text.split())
        answer = await client.call(
            RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, 0, properties), text.encode()
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def _beat(expression: str, version: int, kind: str = "SQL92", group: str = GROUP) -> bytes:
    wanted = subscription(TOPIC, expression, expressionType=kind, subVersion=version)
    return heartbeat("c1", consumer_data(group, wanted))


async def _subscribe(client: RawClient, expression: str, version: int = 1) -> None:
    answer = await client.call(RequestCode.HEART_BEAT, body=_beat(expression, version))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def _by_heartbeat(offset: int = 0, version: int = 1, flags: int = 0) -> dict[str, str]:
    more = {"sysFlag": str(flags), "subscription": "", "subVersion": str(version)}
    return pull_fields(TOPIC, 0, offset, GROUP, **more)


def _by_request(expression: str, offset: int = 0, **more: str) -> dict[str, str]:
    return pull_fields(
        TOPIC, 0, offset, GROUP, subscription=expression, expressionType="SQL92", **more
    )


async def _pull(client: RawClient, fields: dict[str, str]) -> tuple[int, list[str], int]:
    """Code, bodies, and where to go on."""
    answer = await client.call(RequestCode.PULL_MESSAGE, fields)
    bodies = [(message.body or b"").decode() for message in decode_messages(answer.body)]
    return answer.code, bodies, int(answer.ext_fields.get("nextBeginOffset", -1))


def _on(**changes: Any) -> dict[str, Any]:
    return {"enable_property_filter": True, **changes}


async def test_a_registered_filter_decides(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=9 TAGS=a", "n=7 TAGS=a", "n=9 TAGS=b", "TAGS=a", "n=x TAGS=a")
        await _subscribe(client, "n > 8 AND TAGS = 'a'")
        assert await _pull(client, _by_heartbeat()) == (0, ["n=9 TAGS=a"], 5)
        await _subscribe(client, "n IS NULL OR TAGS IN ('b')", version=2)
        assert await _pull(client, _by_heartbeat(version=2)) == (0, ["n=9 TAGS=b", "TAGS=a"], 5)
        await client.close()


async def test_a_filtered_out_backlog_moves_the_client_on(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, *["n=1"] * 5)
        await _subscribe(client, "n > 8")
        assert await _pull(client, _by_heartbeat(flags=2)) == (20, [], 5)
        await client.close()


async def test_a_filter_in_the_request_needs_no_heartbeat(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=9", "n=7")
        assert await _pull(client, _by_request("n = 7")) == (0, ["n=7"], 2)
        answer = await client.call(RequestCode.PULL_MESSAGE, _by_request("n = 7 + 1"))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "'+' stands at character 7" in (answer.remark or "")
        fields = {**_by_request("n = 7"), "expressionType": "XPATH"}
        answer = await client.call(RequestCode.PULL_MESSAGE, fields)
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "'XPATH'" in (answer.remark or "")
        await client.close()


async def test_filters_are_off_unless_the_key_says_otherwise(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=9")
        await _subscribe(client, "n > 8")
        for fields in (_by_heartbeat(), _by_request("n = 9"), _by_request("n = ")):
            answer = await client.call(RequestCode.PULL_MESSAGE, fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith(
                "The broker does not support consumer to filter message by SQL92"
            )
            assert "enablePropertyFilter" in (answer.remark or "")
        assert broker.parts.filters.count == 0
        await client.close()


async def test_a_filter_that_is_none_or_old(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=9")
        await _subscribe(client, "n > ", version=1)
        answer = await client.call(RequestCode.PULL_MESSAGE, _by_heartbeat(version=1))
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert "the expression ends at character 5" in (answer.remark or "")
        await _subscribe(client, "n > 8", version=5)
        answer = await client.call(RequestCode.PULL_MESSAGE, _by_heartbeat(version=6))
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        data = broker.parts.filters.get(TOPIC, GROUP)
        assert data is not None
        data.client_version = 4
        answer = await client.call(RequestCode.PULL_MESSAGE, _by_heartbeat(version=5))
        assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST
        await client.close()


async def test_a_held_pull_wakes_for_what_it_wants(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=1")
        await _subscribe(client, "n > 8")
        await client.call(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
        held = client.send(RequestCode.PULL_MESSAGE, _by_heartbeat(1, flags=2))
        alike = client.send(RequestCode.PULL_MESSAGE, _by_request("n > 8", 1, sysFlag="6"))
        other = client.send(RequestCode.PULL_MESSAGE, _by_request("n = 9", 1, sysFlag="6"))
        await _send(client, "n=2", "n=3")
        assert broker.parts.holding.count == 3
        assert broker.parts.store.stats.filter_examined == 4, "once for those that filter alike"
        await _send(client, "n=10")
        for opaque in (held, alike):
            answer = await client.answer(opaque)
            assert answer.code == ResponseCode.SUCCESS
            assert [message.body for message in decode_messages(answer.body)] == [b"n=10"]
        assert broker.parts.holding.count == 1
        await _send(client, "n=9")
        assert (await client.answer(other)).code == ResponseCode.SUCCESS
        await client.close()


async def test_the_sweep_moves_a_held_pull_on(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=1")
        held = client.send(RequestCode.PULL_MESSAGE, _by_request("n > 8", 1, sysFlag="6"))
        await _send(client, "n=2")
        broker.parts.holding.sweep()
        answer = await client.answer(held)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext_fields["nextBeginOffset"] == "2"
        await client.close()


async def test_old_messages_are_filtered_off_the_loop(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, *["n=1", "n=9"] * 6)
        broker.parts.store._reader._memory_span = 0
        assert await _pull(client, _by_request("n > 8")) == (0, ["n=9"] * 6, 12)
        assert broker.parts.store.stats.cold_reads == 1
        await client.close()


async def test_retried_messages_by_what_the_group_wants_of_their_topic(tmp_path: Path) -> None:
    retry = "%RETRY%" + GROUP
    for supported, expected in ((True, ["n=9", "other"]), (False, ["any"])):
        root = tmp_path / str(supported)
        async with live_broker(root, **_on(filter_support_retry=supported)) as broker:
            client = await RawClient.open(broker.listen_address)
            await _subscribe(client, "n > 8")  # makes the retry topic
            body = json.loads(_beat("n > 8", 1))
            (subscription,) = body["consumerDataSet"][0]["subscriptionDataSet"]
            body["consumerDataSet"][0]["subscriptionDataSet"].append(
                {**subscription, "topic": retry, "subString": "any = 'yes'"}
            )
            await client.call(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
            for name, properties in (
                ("n=9", f"n\x019\x02RETRY_TOPIC\x01{TOPIC}"),
                ("n=7", f"n\x017\x02RETRY_TOPIC\x01{TOPIC}"),
                ("other", "n\x017\x02RETRY_TOPIC\x01unknown"),
                ("any", f"n\x017\x02any\x01yes\x02RETRY_TOPIC\x01{TOPIC}"),
            ):
                fields = send_fields(retry, 0, properties)
                answer = await client.call(RequestCode.SEND_MESSAGE_V2, fields, name.encode())
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            _, bodies, _ = await _pull(client, {**_by_heartbeat(), "topic": retry})
            assert bodies == expected
            await client.close()


async def test_figures(tmp_path: Path) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        await _send(client, "n=9", "n=1", "n=2")
        await _subscribe(client, "n > 8")
        await _pull(client, _by_heartbeat())
        assert broker.metrics_address is not None
        text = await _scrape(broker.metrics_address)
        for line in (
            'skylarkmq_filter_records_total{broker="broker-a",cluster="DefaultCluster",'
            'result="matched"} 1.0',
            'result="refused"} 2.0',
            'skylarkmq_consumer_filters{broker="broker-a",cluster="DefaultCluster"} 1.0',
        ):
            assert line in text
        gone = {"clientID": "c1", "consumerGroup": GROUP}
        assert (await client.call(RequestCode.UNREGISTER_CLIENT, gone)).code == 0
        assert broker.parts.filters.count == 0
        await client.close()


async def _scrape(address: tuple[str, int]) -> str:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return text


@pytest.mark.parametrize(
    ("kind", "expression", "code", "why"),
    [
        ("SQL92", "n > 8", 0, ""),
        ("TAG", "a || b", 0, ""),
        ("SQL92", "n > 'x'", 23, "'x' cannot be ordered by >"),
        ("SQL92", "n = 1 " * 1000, 23, "6000 characters"),
        ("JS", "true", 23, "no filter is called 'JS'"),
    ],
)
async def test_a_client_asks_first(
    tmp_path: Path, kind: str, expression: str, code: int, why: str
) -> None:
    async with live_broker(tmp_path, **_on()) as broker:
        client = await RawClient.open(broker.listen_address)
        consumer = json.loads(_beat(expression, 1, kind))["consumerDataSet"][0]
        body = {
            "clientId": "c1",
            "group": GROUP,
            "subscriptionData": consumer["subscriptionDataSet"][0],
        }
        answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())
        assert answer.code == code and why in (answer.remark or "")
        assert broker.parts.filters.count == 0
        await client.close()


async def test_a_client_hears_that_filters_are_off(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        body = {
            "clientId": "c1",
            "group": GROUP,
            "subscriptionData": {"topic": TOPIC, "subString": "n =", "expressionType": "SQL92"},
        }
        answer = await client.call(RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "enablePropertyFilter" in (answer.remark or "")
        await client.close()
