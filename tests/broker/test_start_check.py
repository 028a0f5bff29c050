"""`--check`: what a start would meet, told without a change."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from skylarkmq.broker.config.config_file import (
    Loaded,
    Sources,
    load_broker_config,
    load_namesrv_config,
)
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.start_check import Finding, check_start
from skylarkmq.common.files import DiskFiles
from skylarkmq.store.folder import AbortFile, StorePaths, save_profile
from tests.support.live_broker import live_broker

PORTS = ("listenPort=0", "namesrvListenPort=0", "metricsPromExporterPort=0")


def load(root: Path, *settings: str) -> Loaded[BrokerConfig]:
    lines = (f"storePathRootDir={root}", *PORTS, *settings)
    return load_broker_config(Sources(settings=lines, profile="test", host_name="host"))


async def check(root: Path, *settings: str) -> dict[str, Finding]:
    found = await check_start(load(root, *settings), with_namesrv=True)
    return {each.subject: each for each in found}


async def test_a_start_that_would_succeed(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    found = await check(root)
    assert {each.level for each in found.values()} <= {"ok", "warning"}
    assert "will be made" in found["store"].text
    assert not root.parent.exists(), "it changes nothing"


async def test_a_store_that_a_broker_runs_on(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        root = broker.config.store.store_path_root_dir
        assert "in use" in (await check(root))["store"].text


async def test_what_would_refuse_the_start(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    with taken:
        found = await check(tmp_path, f"namesrvListenPort={port}", "brokerIP1=no.such.invalid")
    assert found["addresses"].level == "problem" and str(port) in found["addresses"].text
    assert found["advertised address"].level == "problem"
    found = await check(tmp_path, "aclEnable=true", f"rocketmqHome={tmp_path}")
    assert "plain_acl.yml" in found["access control"].text
    missing = tmp_path / "missing.pem"
    found = await check(
        tmp_path,
        *("tls.test.mode.enable=false", "tls.server.mode=enforcing"),
        f"tls.server.certPath={missing}",
        f"tls.server.keyPath={missing}",
    )
    assert found["TLS"].level == "problem" and "missing.pem" in found["TLS"].text


async def test_a_store_of_other_sizes_and_one_that_was_killed(tmp_path: Path) -> None:
    paths, files = StorePaths(tmp_path), DiskFiles()
    save_profile(files, paths.profile, load(tmp_path).config.store.file_sizes)
    assert (await check(tmp_path))["store"].level == "ok"
    AbortFile(files, paths).create()
    assert (await check(tmp_path))["store"].level == "warning"
    found = await check(tmp_path, "mappedFileSizeCommitLog=33554432")
    assert found["store"].level == "problem" and "16777216" in found["store"].text


async def test_a_store_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--profile dev` names it."""
    monkeypatch.chdir(tmp_path.parent)
    root = Path(tmp_path.name)
    assert (await check(root))["store"] == Finding("ok", "store", str(root))
    paths, files = StorePaths(root), DiskFiles()
    save_profile(files, paths.profile, load(root).config.store.file_sizes)
    assert (await check(root, "mappedFileSizeCommitLog=33554432"))["store"].level == "problem"


async def test_a_pool_that_is_larger_than_the_memory(tmp_path: Path) -> None:
    found = await check(
        tmp_path, "transientStorePoolEnable=true", "transientStorePoolSize=10000000"
    )
    assert found["memory"].level == "problem" and "transientStorePoolSize" in found["memory"].text


async def test_an_address_that_nobody_reaches_is_told(tmp_path: Path) -> None:
    found = await check(tmp_path, "brokerIP1=203.0.113.7")
    assert found["advertised address"].level == "warning"
    assert "set bindAddress" in found["advertised address"].text


async def test_exposure_and_keys_without_effect_are_told(tmp_path: Path) -> None:
    found = await check(
        tmp_path, "bindAddress=0.0.0.0", "brokerIP1=127.0.0.1", "useEpollNativeSelector=true"
    )
    assert found["exposure"].level == found["configuration"].level == "warning"


@pytest.mark.parametrize("is_taken", [False, True])
async def test_a_name_servers_check(is_taken: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if is_taken else 0
        loaded = load_namesrv_config(Sources(settings=(f"listenPort={port}",)))
        found = {each.subject: each for each in await check_start(loaded)}
    assert found["addresses"].level == ("problem" if is_taken else "ok")
