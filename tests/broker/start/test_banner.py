"""What a start tells: addresses as they really are, the loss window, a first message."""

import dataclasses
from pathlib import Path
from unittest.mock import patch

import pytest

from skylarkmq import kernel
from skylarkmq.broker.config.settings import NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.namesrv.controller import NamesrvController
from skylarkmq.broker.start.banner import (
    banner,
    loss_window,
    loss_window_ms,
    namesrv_banner,
    namesrv_ready_fields,
    ready_fields,
    text_of,
    tls_text,
)
from skylarkmq.store.config import StoreConfig
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.manual_clock import ManualClock


async def test_the_banner_says_where_everything_is(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        text = banner(broker, 0.25, ["deleteWhen", "slaveTimeout"])
        port = broker.listen_address[1]
        assert broker.metrics_address is not None
        for part in (
            "ready after 0.25 s",
            f"127.0.0.1:{port} (fast port {port - 2}), broker-a,",
            f"told to clients as 127.0.0.1:{port}",
            f"name server  {namesrv_of(broker)}",
            f"http://127.0.0.1:{broker.metrics_address[1]}/metrics",
            str(tmp_path),
            "ASYNC_FLUSH",
            f"kernel       {kernel.road}",
            "deleteWhen, slaveTimeout",
            "send TopicTest 'hello'",
            "consume TopicTest --group demo",
            f'Producer(namesrv_addr="{namesrv_of(broker)}")',
        ):
            assert part in text
        assert all(line == line.rstrip() for line in text.splitlines())


def test_who_may_speak_tls() -> None:
    assert tls_text(TlsConfig(tls_server_mode="disabled")) == "disabled"
    assert tls_text(TlsConfig()).startswith("permissive, a certificate for this run")
    with patch(
        "skylarkmq.broker.start.banner.find_spec", return_value=None
    ):  # without the extra `tls`
        assert "no certificate" in tls_text(TlsConfig())
    assert tls_text(TlsConfig(tls_test_mode_enable=False)) == "permissive, no certificate: refused"
    known = TlsConfig(
        tls_server_mode="enforcing",
        tls_server_cert_path=Path("/tls/a.pem"),
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=Path("/tls/ca.pem"),
    )
    assert tls_text(known) == "enforcing, /tls/a.pem; certificates of clients: require"


async def test_the_machine_form_holds_the_same(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        port = broker.listen_address[1]
        assert broker.metrics_address is not None
        fields = ready_fields(broker, 0.25, ["deleteWhen"])
        version = fields.pop("version")
        assert isinstance(version, str)
        assert fields == {
            "event": "ready",
            "broker": "broker-a",
            "brokerId": 0,
            "role": "master",
            "brokerAddr": f"127.0.0.1:{port}",
            "listenAddr": f"127.0.0.1:{port}",
            "namesrvAddr": namesrv_of(broker),
            "metricsAddr": f"127.0.0.1:{broker.metrics_address[1]}",
            "storePathRootDir": str(tmp_path),
            "flushDiskType": "ASYNC_FLUSH",
            "lossWindowMs": 500,
            "tlsMode": "permissive",
            "kernel": kernel.road,
            "readyS": 0.25,
            "withoutEffect": ["deleteWhen"],
        }


def test_the_loss_window_is_told_without_flattery() -> None:
    config = StoreConfig(store_path_root_dir=Path("/store"), flush_interval_commit_log=200)
    assert "200 ms" in loss_window(config) and "a killed process none" in loss_window(config)
    config = dataclasses.replace(config, flush_disk_type="SYNC_FLUSH")
    assert "no crash" in loss_window(config) and "ms" not in loss_window(config).split()


def test_the_pool_and_waiting_for_pages_widen_the_window() -> None:
    pool = StoreConfig(store_path_root_dir=Path("x"), transient_store_pool_enable=True)
    assert loss_window_ms(pool) == 700
    assert "last 700 ms" in loss_window(pool)
    assert "killed process the last 200 ms" in loss_window(pool)
    pages = StoreConfig(store_path_root_dir=Path("x"), flush_commit_log_least_pages=4)
    assert loss_window_ms(pages) == 10_000
    synced = dataclasses.replace(pool, flush_disk_type="SYNC_FLUSH")
    assert (loss_window_ms(synced), "no crash" in loss_window(synced)) == (0, True)


def test_a_name_server_alone() -> None:
    controller = NamesrvController(NamesrvConfig(), ManualClock())
    assert "127.0.0.1:9876" in namesrv_banner(controller, ["kvConfigPath"])
    assert "kvConfigPath" in namesrv_banner(controller, ["kvConfigPath"])
    fields = namesrv_ready_fields(controller, [])
    assert fields["namesrvAddr"] == "127.0.0.1:9876" and "withoutEffect" not in fields


@pytest.mark.parametrize(
    ("host", "text"),
    [("0.0.0.0", "127.0.0.1:1"), ("10.0.0.1", "10.0.0.1:1"), ("::1", "[::1]:1")],
)
def test_addresses_are_ones_to_connect_to(host: str, text: str) -> None:
    assert text_of((host, 1)) == text


async def test_the_broker_says_where_it_is_bound(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        _, port = broker.listen_address
        with patch.object(broker, "listen_address", ("0.0.0.0", port)):
            assert ready_fields(broker, 0.1, [])["listenAddr"] == f"0.0.0.0:{port}"
            assert f"  broker       0.0.0.0:{port} (fast port" in banner(broker, 0.1, [])
