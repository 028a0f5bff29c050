"""`record` and `replay`: what passes, what is left out, and what another server answers."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Admin, Client, Credentials, Message, Producer
from skylarkmq.client.clock import SystemClock
from skylarkmq.client.errors import BrokerError
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RESPONSE_FLAG, RemotingCommand
from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from skylarkmq.tools.running import FAILED, UNREACHABLE, USAGE
from skylarkmq.tools.traffic import recording
from skylarkmq.tools.traffic.proxy import Proxy
from skylarkmq.tools.traffic.recording import Recorder, read
from skylarkmq.tools.traffic.replay import command_of
from tests.support.patience import until
from tests.support.ports import free_ports
from tests.tools.live.shell import Shell, beside

pytestmark = pytest.mark.timing

SECRET = "the-secret-key"
BODY = b"a body that nobody else shall read"


async def send(namesrv: str, *messages: Message, credentials: Credentials | None = None) -> None:
    async with (
        Client(namesrv, credentials=credentials) as client,
        Producer(client=client) as producer,
    ):
        for message in messages:
            await producer.send(message)


async def record(
    namesrv: str, file: Path, work: Callable[[str], Any], *, bodies: bool = False
) -> Recorder:
    """Let `work` talk to a name server and its brokers through a proxy that records."""
    with file.open("w", encoding="utf-8") as stream:
        recorder = Recorder(stream, bodies)
        recorder.head(namesrv)
        clock = SystemClock(asyncio.get_running_loop())
        proxy = Proxy(recorder, clock, "127.0.0.1", brokers=True)
        try:
            await work(await proxy.listen(namesrv))
        finally:
            await proxy.close()
    return recorder


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_clients_reach_brokers_through_the_proxy(broker: SyncBroker, tmp_path: Path) -> None:
    file = tmp_path / "recording"
    message = Message("proxied", BODY, keys="k1")
    recorder = asyncio.run(record(broker.namesrv_addr, file, lambda to: send(to, message)))
    assert [each.body for each in broker.messages("proxied")] == [BODY]
    assert recorder.codes["SEND_MESSAGE_V2"] == 1 and "GET_ROUTEINFO_BY_TOPIC" in recorder.codes
    head, *lines = lines_of(file)
    assert head == {"recording": 1, "to": broker.namesrv_addr, "bodies": False}
    (sent,) = [line for line in lines if line["name"] == "SEND_MESSAGE_V2"]
    assert (sent["from"], sent["body_size"], sent["body"]) == ("client", len(BODY), None)
    assert "k1" in sent["fields"]["i"]
    (answer,) = [
        line
        for line in lines
        if line["from"] == "server"
        and (line["connection"], line["opaque"]) == (sent["connection"], sent["opaque"])
    ]
    assert answer["code"] == 0 and answer["at_ms"] >= sent["at_ms"]
    text = file.read_text("utf-8")
    assert BODY.decode() not in text and b64encode(BODY).decode() not in text


def test_bodies_only_when_they_are_asked_for(broker: SyncBroker, tmp_path: Path) -> None:
    file = tmp_path / "recording"

    async def work(namesrv: str) -> None:
        await send(namesrv, Message("recorded", BODY))
        async with Client(namesrv) as client, Admin(client=client) as admin:
            await admin.broker_config("broker-a")

    asyncio.run(record(broker.namesrv_addr, file, work, bodies=True))
    lines = lines_of(file)[1:]
    (sent,) = [line for line in lines if line["name"] == "SEND_MESSAGE_V2"]
    assert sent["body"] == b64encode(BODY).decode()
    (asked,) = [line for line in lines if line["name"] == "GET_BROKER_CONFIG"]
    answers = {(line["connection"], line["opaque"]): line for line in lines
               if line["from"] == "server"}  # fmt: skip
    told = answers[(asked["connection"], asked["opaque"])]
    assert told["body_size"] > 0 and told["body"] is None, "settings may hold passwords"


def test_no_secret_gets_into_a_recording(tmp_path: Path) -> None:
    file = tmp_path / "recording"
    accounts = [Account("the-user", SECRET, topic_rights={"mine": "PUB"})]
    with run_broker_sync(accounts=accounts) as guarded:

        async def work(namesrv: str) -> None:
            mine = Credentials("the-user", SECRET, security_token="the-token")
            await send(namesrv, Message("mine", BODY), credentials=mine)
            with pytest.raises(BrokerError):
                await send(
                    namesrv, Message("other", BODY), credentials=Credentials("the-user", "wrong")
                )

        asyncio.run(record(guarded.namesrv_addr, file, work))
        text = file.read_text("utf-8")
        for secret in (SECRET, "the-user", "the-token"):
            assert secret not in text
        signed = [line for line in lines_of(file)[1:] if "Signature" in line.get("fields", {})]
        assert signed and {line["fields"]["Signature"] for line in signed} == {"***"}
        # A replay signs for itself.
        requests = [each for each in read(file) if each.code == RequestCode.SEND_MESSAGE_V2]
        command = command_of(requests[0])
        assert isinstance(command, RemotingCommand)
        assert not command.ext_fields.keys() & {"Signature", "AccessKey", "SecurityToken"}


def test_what_passes_is_not_changed_where_it_cannot_be_read(
    broker: SyncBroker, tmp_path: Path
) -> None:
    """As with TLS: bytes go both ways, and the recording has none of them."""
    file = tmp_path / "recording"

    async def work() -> bytes:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(8))
            await writer.drain()
            writer.close()

        with file.open("w") as stream:
            recorder = Recorder(stream, False)
            clock = SystemClock(asyncio.get_running_loop())
            proxy = Proxy(recorder, clock, "127.0.0.1")
            async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
                port = server.sockets[0].getsockname()[1]
                address = await proxy.listen(f"127.0.0.1:{port}")
                reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
                writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01")
                answer = await reader.read()
                writer.close()
                await proxy.close()
        return answer

    assert asyncio.run(work()) == b"\x16\x03\x01\x02\x00\x01\x00\x01"
    assert file.read_text() == ""


def test_requests_without_an_answer_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or one-way offsets of a long recording would leave no room for what is answered."""
    monkeypatch.setattr(recording, "WAITING_MAX", 2)
    code = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    with (tmp_path / "recording").open("w") as stream:
        recorder = Recorder(stream, False)

        def add(connection: int, *, oneway: bool = False) -> RemotingCommand:
            command = RemotingCommand.request(code, {}, b"", oneway=oneway)
            recorder.add(0, connection, "client", "h:1", command)
            return command

        for _ in range(5):
            add(1, oneway=True)
        for _ in range(2):
            add(1)
        recorder.closed(1)
        answer = RemotingCommand(0, flag=RESPONSE_FLAG, opaque=add(2).opaque)
        assert recorder.add(0, 2, "server", "h:1", answer) == code


def test_record_as_a_command(shell: Shell, broker: SyncBroker, tmp_path: Path) -> None:
    file, (port,) = tmp_path / "recording", free_ports()

    async def work() -> None:
        async def is_there() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await until(is_there)
        await send(f"127.0.0.1:{port}", Message("recorded", BODY))

    file.touch(0o644)
    with beside(work()):
        options = ("--listen", f"127.0.0.1:{port}", "--brokers", "--count", "4")
        said = shell("record", str(file), *options)
    assert "clients connect to" in said.err
    assert said.json["requests"] + said.json["answers"] == 4
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(lines_of(file)) == 5
    assert shell("record", str(file), "--for", "1ms").json["requests"] == 0
    shell("record", str(file), "--listen", "0.0.0.0:0", code=USAGE)
    shell("record", str(file), "--to", "nonsense", code=USAGE)
    shell("record", str(tmp_path / "no" / "file"), code=1)


def test_a_replay_compares_the_answers(shell: Shell, broker: SyncBroker, tmp_path: Path) -> None:
    file = tmp_path / "recording"
    messages = [Message("replayed", BODY, keys=str(number)) for number in range(3)]
    broker.create_topic("replayed", queues=1)
    asyncio.run(record(broker.namesrv_addr, file, lambda to: send(to, *messages)))
    (stored, *_) = broker.messages("replayed")
    to = str(stored.store_host)
    said = shell("replay", str(file), "--to", to, "--yes", code=USAGE)
    assert "several servers" in said.err and broker.namesrv_addr in said.err
    said = shell("replay", str(file), "--to", f"h:1={to}", "--yes", code=USAGE)
    assert "no requests to h:1" in said.err
    row = shell(
        "replay", str(file), "--to", f"{broker.namesrv_addr}={broker.namesrv_addr}", "--yes"
    )
    assert row.json["same"] > 0 and row.json["skipped"]["other server"] > 0
    assert len(broker.messages("replayed")) == 3, "none of the requests to the broker was sent"
    only = tmp_path / "sends"
    sends = [line for line in file.read_text().splitlines() if f'"to": "{to}"' in line]
    only.write_text("\n".join([file.read_text().splitlines()[0], *sends]) + "\n")
    said = shell("replay", str(only), "--to", to, "--dry-run")
    assert "would send" in said.err
    shell("replay", str(only), "--to", to, code=USAGE)
    row = shell("replay", str(only), "--to", to, "--speed", "0", "--yes").json
    assert (row["different"], row["failed"]) == (0, 0)
    assert row["same"] + row["skipped"].get("body left out", 0) == row["requests"]
    bodies = [each.body for each in broker.messages("replayed")]
    assert bodies == [BODY] * 3 + [b"x" * len(BODY)] * 3
    assert shell("replay", str(only), "--to", to, "--count", "1", "--yes").json["requests"] == 1
    # Another broker does not have the topic, and makes none.
    with run_broker_sync(settings={"autoCreateTopicEnable": False}) as other:
        other.create_topic("mine")
        asyncio.run(send(other.namesrv_addr, Message("mine", b"x")))
        place = str(other.messages("mine")[0].store_host)
        row = shell("replay", str(only), "--to", place, "--yes", code=FAILED).json
        table = shell("replay", str(only), "--to", place, "--yes", "-o", "table", code=FAILED)
    assert row["different"] == 3
    assert row["differences"][0]["name"] == "SEND_MESSAGE_V2"
    assert (row["differences"][0]["recorded"], row["differences"][0]["got"]) == (0, 17)
    assert "recorded 0, got 17" in table.out
    (port,) = free_ports()
    shell("replay", str(only), "--to", f"127.0.0.1:{port}", "--yes", code=UNREACHABLE)


def test_a_file_that_is_no_recording(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "file"
    for text in ("nonsense", '{"recording": 9}', '{"recording": 1}\n{"from": "client"}'):
        file.write_text(text)
        assert str(file) in shell("replay", str(file), "--to", "h:1", "--yes", code=1).err
