"""The audit log: a line for each change, done or refused, without secrets, at a bounded rate."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.access.audit import BURST, Audit
from skylarkmq.broker.access.rights import BROKER
from skylarkmq.broker.base.logs import JsonFormatter
from skylarkmq.common.files import DiskFiles
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.signature import sign_request
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import RawClient
from tests.support.workers import ManualWorker

SECRET = "hidden-secret"
CREATE = {
    "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG",
}  # fmt: skip


class Peer:
    remote_address = "10.0.0.7:51234"


def signed(fields: dict[str, str], body: bytes = b"", key: str = "administrator") -> dict[str, str]:
    command = RemotingCommand.request(0, fields, body)
    sign_request(command, key, SECRET.encode())
    return command.ext_fields


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_changes_are_told_and_refused_ones_too(tmp_path: Path) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        f"accounts:\n- {{accessKey: administrator, secretKey: {SECRET}, admin: true}}\n"
        f"- {{accessKey: somebody, secretKey: {SECRET}}}\n"
    )
    path = tmp_path / "audit.log"
    changes = {"acl_enable": True, "rocketmq_home": conf.parent, "audit_log_path": path}
    async with live_broker(tmp_path / "store", **changes) as broker:
        client = await RawClient.open(broker.listen_address)
        assert (await client.call(17, signed(CREATE))).code == 0
        assert (await client.call(17, signed(CREATE, key="somebody"))).code == 1
        assert (await client.call(17, CREATE)).code == 1
        assert (await client.call(17, signed({**CREATE, "perm": "x"}))).code == 1
        group = b'{"groupName":"readers"}'
        assert (await client.call(200, signed({}, group), group)).code == 0
        keys = b"traceOn=false"
        assert (await client.call(25, signed({}, keys), keys)).code == 0
        account = {"accessKey": "new-account", "secretKey": SECRET, "admin": "false"}
        assert (await client.call(50, signed(account))).code == 0
        assert (await client.call(21, signed({}))).code == 0  # no change
        host, port = namesrv_of(broker).split(":")
        other = await RawClient.open((host, int(port)))
        kv = {"namespace": "n", "key": "k", "value": "v"}
        assert (await other.call(100, signed(kv))).code == 0
        await other.close()
        await client.close()
    told = sorted(lines(path), key=lambda line: line["server"])  # each server writes by itself
    assert [(each["who"], each["code"], each["result"]) for each in told] == [
        ("administrator", 17, 0), ("somebody", 17, 1), ("", 17, 1), ("administrator", 17, 1),
        ("administrator", 200, 0), ("administrator", 25, 0), ("administrator", 50, 0),
        ("administrator", 100, 0),
    ]  # fmt: skip
    assert [each["resource"] for each in told[4:]] == [
        {"groupName": "readers"}, {"keys": "traceOn"},
        {"accessKey": "new-account", "admin": "false"}, {"namespace": "n", "key": "k"},
    ]  # fmt: skip
    assert told[0]["from"].startswith("127.0.0.1:") and told[0]["name"] == "UPDATE_AND_CREATE_TOPIC"
    assert told[-1]["server"] == "namesrv"
    assert "Need admin permission" in told[1]["remark"]
    assert SECRET not in path.read_text()


async def test_without_a_file_the_log_has_the_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "skylarkmq.audit"):
        async with live_broker(tmp_path) as broker:
            client = await RawClient.open(broker.listen_address)
            assert (await client.call(17, CREATE)).code == 0
            await client.close()
    (record,) = [each for each in caplog.records if each.name == "skylarkmq.audit"]
    assert json.loads(record.getMessage())["resource"]["topic"] == "orders"
    line = json.loads(JsonFormatter("broker-a").format(record))
    assert line["resource"]["topic"] == "orders", "one object, and no JSON as a text in it"
    assert (line["msg"], line["name"], line["code"]) == (*["UPDATE_AND_CREATE_TOPIC"] * 2, 17)
    assert line.keys() >= {"ts", "level", "logger", "broker", "server", "who", "from", "result"}


def test_the_rate_is_bounded_and_what_is_missing_is_counted(tmp_path: Path) -> None:
    clock, worker, path = ManualClock(), ManualWorker(), tmp_path / "audit.log"
    audit = Audit("b", BROKER, clock, path, DiskFiles(), worker)
    request = RemotingCommand.request(17, CREATE)

    def note() -> None:
        audit.note(Peer(), request, request.reply(0))  # type: ignore[arg-type]

    for _ in range(BURST + 7):
        note()
    while worker.step():
        pass
    assert len(lines(path)) == BURST
    clock.advance(60)
    note()
    worker.step()
    assert lines(path)[-1]["leftOut"] == 7
    path.rename(tmp_path / "audit.log.1")
    note()
    worker.step()
    assert len(lines(path)) == 1


def test_a_disk_that_fails_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker, path = ManualWorker(), tmp_path / "none" / "audit.log"
    audit = Audit("b", BROKER, ManualClock(), path, DiskFiles(), worker)
    request = RemotingCommand.request(17, CREATE)
    for _ in range(3):
        audit.note(Peer(), request, None)  # type: ignore[arg-type]
        worker.step()
    assert len(caplog.records) == 1
    path.parent.mkdir()
    audit.note(Peer(), request, None)  # type: ignore[arg-type]
    worker.step()
    assert (lines(path)[0]["leftOut"], len(caplog.records)) == (3, 2)
