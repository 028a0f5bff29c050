"""Changing a running broker's configuration, and telling it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skylarkmq.broker import live_config
from skylarkmq.broker.config_keys import REFUSED, WITHOUT_EFFECT
from skylarkmq.broker.live_config import LIVE_KEYS, ConfigOrigin, LiveConfig
from skylarkmq.broker.processor.admin_broker import AdminBrokerProcessor, is_local
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request

LOCAL = "127.0.0.1:40000"


class Rig(GroupRig):
    def __init__(self) -> None:
        super().__init__(broker_cluster_name="C1", broker_name="broker-a")
        self.live = LiveConfig(self.config, self.files, self.workers.tables, self.clock)
        self.live.listeners.append(self.topics.config_changed)
        self.processor = AdminBrokerProcessor(self.live)

    async def update(self, text: str, peer: str = LOCAL) -> RemotingCommand:
        return await ask(
            self, self.processor, FakeConnection(peer), request(25, body=text.encode())
        )

    async def rows(self) -> dict[str, str]:
        answer = await ask(self, self.processor, FakeConnection(), request(26))
        return dict(line.split("=", 1) for line in answer.body.decode().splitlines())

    def write_file(self, text: bytes, **stronger: str) -> Path:
        path = self.files.root / "broker.conf"
        self.files.replace(path, text, backup=False)
        self.live.origin = ConfigOrigin(path, stronger)
        return path


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_a_change_is_in_force_at_once(rig: Rig) -> None:
    assert rig.topics.create_in_send("a", "TBW102", 4, "peer", 0) is not None
    answer = await rig.update("autoCreateTopicEnable=false\nfileReservedTime = 12\n")
    assert answer.code == 0
    assert "next start" in (answer.remark or "")
    assert rig.topics.create_in_send("b", "TBW102", 4, "peer", 0) is None
    assert rig.store.config.file_reserved_time == 12
    rows = await rig.rows()
    assert (rows["autoCreateTopicEnable"], rows["fileReservedTime"]) == ("false", "12")


async def test_the_version_follows_changes_alone(rig: Rig) -> None:
    async def counter() -> int:
        answer = await ask(rig, rig.processor, FakeConnection(), request(26))
        count: int = json.loads(answer.ext_fields["version"])["counter"]
        return count

    assert await counter() == 0
    await rig.update("traceOn=false")
    await rig.update("traceOn=false")
    assert await counter() == 1


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("brokerIP1=10.0.0.1", 16, "restart"),
        ("aclEnable=false", 16, "restart"),
        ("storePathRootDir=/etc", 16, "restart"),
        ("listenPort=1", 16, "restart"),
        ("rocketmqHome=/tmp; touch /tmp/x", 16, "restart"),
        ("brokerConfigPath=/etc/passwd", 16, "restart"),
        ("fileReservedTim=1", 1, "did you mean fileReservedTime"),
        ("fileReservedTime=soon", 1, "whole number"),
        ("brokerPermission=8", 1, "brokerPermission"),
        ("traceOn=maybe", 1, "true or false"),
        ("traceOn=\\u00g0", 1, "no properties"),
        ("x" * 70000, 1, "bytes"),
    ],
)
async def test_what_may_not_be_changed_changes_nothing(
    rig: Rig, text: str, code: int, why: str
) -> None:
    before = await rig.rows()
    answer = await rig.update(f"autoCreateSubscriptionGroup=false\n{text}")
    assert answer.code == code
    assert why in (answer.remark or "")
    assert await rig.rows() == before


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("127.0.0.1:1", True), ("127.8.8.8:1", True), ("::1:5", True), ("::ffff:127.0.0.1:5", True),
        ("10.0.0.1:1", False), ("::ffff:10.0.0.1:5", False), ("0.0.0.0:1", False), ("", False),
        ("localhost:1", False), ("127.0.0.1.example.com:1", False),
    ],
)  # fmt: skip
async def test_only_this_machine_changes_anything(rig: Rig, peer: str, allowed: bool) -> None:
    assert is_local(peer) is allowed
    answer = await rig.update("traceOn=false", peer)
    assert answer.code == (0 if allowed else 16)
    assert rig.config.trace_on is not allowed


async def test_the_file_keeps_what_else_stands_in_it(rig: Rig) -> None:
    path = rig.write_file(
        b"# mine\r\nbrokerName = a\ntraceOn : \\\n  true\nfileReservedTime=1\nfileReservedTime=2"
    )
    answer = await rig.update("traceOn=false\nfileReservedTime=48\nmaxTopics=77\n")
    assert (answer.code, answer.remark) == (0, None)
    assert rig.files.read_all(path) == (
        b"# mine\nbrokerName = a\ntraceOn=false\nfileReservedTime=1\nfileReservedTime=48\n"
        b"maxTopics=77\n"
    )
    assert rig.files.exists(path.with_name("broker.conf.bak"))


async def test_stronger_places_are_named(rig: Rig) -> None:
    rig.write_file(b"", traceOn="--set")
    answer = await rig.update("traceOn=false")
    assert answer.code == 0
    assert answer.remark == "traceOn comes from --set, which wins at the next start"


async def test_a_file_that_can_not_be_written_is_told(rig: Rig) -> None:
    path = rig.write_file(b"")
    rig.files.unlink(path)
    answer = await rig.update("traceOn=false")
    assert answer.code == 0
    assert "could not be written" in (answer.remark or "")
    assert not rig.config.trace_on


async def test_permission_goes_with_every_topic(rig: Rig) -> None:
    told: list[str] = []
    rig.topics.add_reset_listener(lambda: told.append("all"))
    version = rig.topics.data_version
    await rig.update("brokerPermission=4")
    assert rig.config.broker_permission == 4
    assert told == ["all"]
    assert rig.topics.data_version != version


async def test_topics_on_demand_need_their_pattern(rig: Rig) -> None:
    await rig.update("autoCreateTopicEnable=false")
    rig.topics.delete("TBW102")
    await rig.update("autoCreateTopicEnable=true")
    assert rig.topics.create_in_send("b", "TBW102", 4, "peer", 0) is not None


async def test_the_answer_is_the_configuration_without_secrets(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await rig.rows()
    assert rows["brokerName"] == "broker-a"
    assert rows["brokerIP1"] == ""
    assert rows["flushDiskType"] == "ASYNC_FLUSH"
    assert "store" not in rows
    assert live_config.is_secret("aclSecretKey")
    assert live_config.is_secret("tlsKeyPassword")
    monkeypatch.setattr(live_config, "is_secret", lambda key: key == "brokerName")
    assert "brokerName" not in await rig.rows()


def test_live_keys_are_known_and_have_an_effect() -> None:
    rows = {key for key, _ in Rig().live.rows()}
    assert rows >= LIVE_KEYS
    assert not LIVE_KEYS & WITHOUT_EFFECT
    assert not LIVE_KEYS & set(REFUSED)
    assert not [key for key in LIVE_KEYS if "path" in key.lower() or "address" in key.lower()]
