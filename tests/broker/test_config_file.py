"""Configuration: the order of its sources, strict values, and errors that a human can act on."""

from pathlib import Path

import pytest

from skylarkmq.broker.config.config_file import (
    Loaded,
    Sources,
    effective_values,
    load_broker_config,
    load_namesrv_config,
    values_of,
)
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.kernel import PURE_VARIABLE


def _load(
    *settings: str, file: str | None = None, path: Path | None = None, **environment: str
) -> Loaded[BrokerConfig]:
    if file is not None:
        assert path is not None
        path.write_text(file)
    return load_broker_config(
        Sources(path if file is not None else None, environment, settings, Path("/home/u"), "node1")
    )


def _error(*settings: str, **environment: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(*settings, **environment)
    return caught.value


def test_defaults_come_from_the_machine() -> None:
    loaded = _load()
    assert loaded.config.broker_name == "node1"
    assert loaded.config.store.store_path_root_dir == Path("/home/u/store")
    assert loaded.config.store.store_path_commit_log is None
    assert loaded.without_effect == loaded.unknown_variables == []


def test_later_sources_win(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    file = "listenPort=1001\nflushDiskType=SYNC_FLUSH\nbrokerName=a\nlistenPort=1002\n"
    config = _load(file=file, path=path).config
    assert (config.listen_port, config.store.flush_disk_type) == (1002, "SYNC_FLUSH")
    config = _load(file=file, path=path, SKYLARKMQ_LISTEN_PORT="1003").config
    assert (config.listen_port, config.broker_name) == (1003, "a")
    config = _load("listenPort=1004", file=file, path=path, SKYLARKMQ_LISTEN_PORT="1003").config
    assert config.listen_port == 1004
    assert _load("listenPort=1004", "listenPort=1005").config.listen_port == 1005


def test_a_port_is_off_by_a_word_or_by_nothing() -> None:
    for key in ("metricsPromExporterPort", "grpcListenPort"):
        for text in ("off", ""):
            config = _load(f"{key}={text}").config
            assert values_of(config)[key] is None
    config = _load("brokerIP1=off").config
    assert config.broker_ip1 == "off", "a host may have that name"
    with pytest.raises(ConfigError, match="write a whole number"):
        _load("listenPort=off")


def test_names_of_variables() -> None:
    config = _load(
        SKYLARKMQ_BROKER_IP1="10.0.0.1",
        SKYLARKMQ_CHECK_CRC_ON_RECOVER="FALSE",
        SKYLARKMQ_STORE_PATH_ROOT_DIR="/data",
    ).config
    assert config.broker_ip1 == "10.0.0.1"
    assert config.store.check_crc_on_recover is False
    assert config.store.store_path_root_dir == Path("/data")


def test_namesrv_addr_variable_is_weaker_than_ours(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    config = _load(file="namesrvAddr=a:1", path=path, NAMESRV_ADDR="b:2").config
    assert config.namesrv_addr == "b:2"
    config = _load(NAMESRV_ADDR="b:2", SKYLARKMQ_NAMESRV_ADDR="c:3").config
    assert config.namesrv_addr == "c:3"


def test_unknown_variables_are_only_told() -> None:
    loaded = _load(SKYLARKMQ_SERVICE_HOST="10.1.1.1", SKYLARKMQ_PORT="tcp://10.1.1.1:10911")
    assert loaded.unknown_variables == ["SKYLARKMQ_PORT", "SKYLARKMQ_SERVICE_HOST"]


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("SKYLARKMQ_FLUSH_DISK_TYP", "SKYLARKMQ_FLUSH_DISK_TYPE"),
        ("SKYLARKMQ_FLUSHDISKTYPE", "SKYLARKMQ_FLUSH_DISK_TYPE"),
        ("SKYLARKMQ_listenPort", "SKYLARKMQ_LISTEN_PORT"),
        ("SKYLARKMQ_LISTENER_PORT", "SKYLARKMQ_LISTEN_PORT"),
        ("SKYLARKMQ_NAMESRV_ADDRESS", "SKYLARKMQ_NAMESRV_ADDR"),
    ],
)
def test_a_variable_near_a_key_is_refused_like_an_unknown_key(variable: str, near: str) -> None:
    error = _error(**{variable: "SYNC_FLUSH"})
    assert str(error) == f"{variable}=SYNC_FLUSH: no such key; did you mean {near}? (environment)"


def test_variables_that_others_set_are_only_told() -> None:
    """Kubernetes sets some for each service, under the service's name."""
    address = "10.1.1.1"
    others: dict[str, str] = {}
    for service in ("", "_BROKER", "_NAMESRV", "_METRICS"):
        name = f"SKYLARKMQ{service}"
        others |= {f"{name}_SERVICE_HOST": address, f"{name}_PORT": f"tcp://{address}:10911"}
        others |= {f"{name}_SERVICE_PORT": "10911", f"{name}_SERVICE_PORT_LISTEN_PORT": "10911"}
        for part, text in (("", f"tcp://{address}:10911"), ("_PROTO", "tcp"), ("_PORT", "10911")):
            others[f"{name}_PORT_10911_TCP{part}"] = text
    others |= dict.fromkeys(("SKYLARKMQ_SEED", "SKYLARKMQ_REAL_JAVA_HOME", "SKYLARKMQ_X"), "1")
    others["SKYLARKMQ_KV_CONFIG_PATH"] = "/a"  # the name server's
    assert set(_load(**others).unknown_variables) == set(others)


def test_a_variable_of_every_key_that_a_file_may_have() -> None:
    loaded = _load(SKYLARKMQ_ROCKETMQ_HOME="/x", SKYLARKMQ_MAPED_FILE_SIZE_COMMIT_LOG="5000000")
    assert loaded.config.store.mapped_file_size_commit_log == 5_000_000
    assert loaded.without_effect == ["rocketmqHome (needs aclEnable=true)"]
    assert loaded.unknown_variables == []


def test_a_key_that_is_gone_says_what_to_use() -> None:
    for error in (_error("drainTokenFile=/x"), _error(SKYLARKMQ_DRAIN_TOKEN_FILE="/x")):
        assert "`skylarkmq cluster drain BROKER --wait 120`" in str(error)
        assert error.key == "drainTokenFile" and "/x" not in str(error)
    assert "rocketmq-exporter run that" in str(_error("metricsCompat=exporter"))
    shared = Sources(environment={"SKYLARKMQ_DRAIN_TOKEN_FILE": "/x"})
    assert load_namesrv_config(shared).unknown_variables == ["SKYLARKMQ_DRAIN_TOKEN_FILE"]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("flushDisktype", "flushDiskType"),
        ("listenport", "listenPort"),
        ("brokerip1", "brokerIP1"),
        ("storePathRoot", "storePathRootDir"),
        ("fileReserveTime", "fileReservedTime"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, near: str) -> None:
    error = _error(f"{key}=1")
    assert str(error) == f"{key}=1: no such key; did you mean {near}? (--set)"


def test_an_unknown_key_like_nothing() -> None:
    assert str(_error("zzz=1")) == "zzz=1: no such key (--set)"


def test_an_error_in_a_file_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=r"broker\.conf line 2"):
        _load(file="# x\nlistenPort=abc\n", path=path)
    with pytest.raises(ConfigError, match=r"broker\.conf.*line 2.*4 hex digits"):
        _load(file="a=1\nb=\\u1\n", path=path)


@pytest.mark.parametrize(
    "setting",
    [
        "listenPort=",
        "listenPort=1_000",
        "listenPort=0x10",
        "listenPort=1.5",
        "listenPort=\u0661\u0662\u0663",
        "listenPort=70000",
        "listenPort=99999999999999999999",
        "autoCreateTopicEnable=yes",
        "autoCreateTopicEnable=1",
        "autoCreateTopicEnable=",
        "flushDiskType=sync_flush",
        "flushIntervalCommitLog=0",
        "mappedFileSizeCommitLog=1024",
        "storePathRootDir=",
        "storePathRootDir=~nobody-like-this/store",
        "brokerName=",
        "namesrvAddr=nowhere",
        "messageDelayLevel=1s 2x",
    ],
)
def test_values_are_read_strictly(setting: str) -> None:
    key, _, value = setting.partition("=")
    error = _error(setting)
    assert error.key == key and error.origin == "--set" and error.cure
    assert value in str(error) or not value


def test_values_with_blanks_around_and_signs_are_fine() -> None:
    config = _load("listenPort = +1234 ", "autoCreateTopicEnable=False").config
    assert config.listen_port == 1234 and config.auto_create_topic_enable is False


def test_a_path_may_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    config = _load("storePathRootDir=~/data", "storePathCommitLog=log").config
    assert config.store.store_path_root_dir == Path("/home/u/data")
    assert config.store.store_path_commit_log == Path("log")


def test_a_setting_without_a_value_says_how_to_write_it() -> None:
    assert "--set key=value" in str(_error("listenPort"))


@pytest.mark.parametrize(
    "setting",
    [
        "duplicationEnable=true",
        "enableLmq=true",
        "enableMultiDispatch=true",
        "fetchNamesrvAddrByAddressServer=true",
    ],
)
def test_what_is_not_built_is_refused_in_one_line(setting: str) -> None:
    error = _error(setting)
    assert str(error).startswith(f"{setting}: ") and "not supported yet" in error.cure
    assert "\n" not in str(error)


def test_the_same_keys_with_their_harmless_values_are_taken() -> None:
    _load("brokerRole=ASYNC_MASTER", "brokerId=0", "storePathCommitLog=/a")


def test_a_slave_and_a_master_that_waits_for_it_are_configured_as_at_apaches() -> None:
    slave = _load("brokerRole=SLAVE", "brokerId=1", "haMasterAddress=10.0.0.1:10912").config
    assert slave.store.is_slave and slave.broker_id == 1
    assert _load("brokerRole=SYNC_MASTER").config.store.broker_role == "SYNC_MASTER"
    loaded = _load("haMasterAddress=10.0.0.1:10912")
    assert loaded.without_effect == ["haMasterAddress (needs brokerRole=SLAVE)"]
    assert "use 1 or more" in _error("brokerRole=SLAVE").cure
    assert "set brokerRole=SLAVE" in _error("brokerId=1").cure


def test_the_file_that_apache_ships_starts(tmp_path: Path) -> None:
    text = """
        brokerClusterName = DefaultCluster
        brokerName = broker-a
        brokerId = 0
        deleteWhen = 04
        fileReservedTime = 48
        brokerRole = ASYNC_MASTER
        flushDiskType = ASYNC_FLUSH
        """
    config = _load(file=text, path=tmp_path / "broker.conf").config
    assert config.broker_name == "broker-a" and config.store.file_reserved_time == 48


def test_keys_of_java_alone_and_old_spellings_are_taken() -> None:
    loaded = _load("storePathIndex=/x", "mapedFileSizeCommitLog=5000000", "filterServerNums=0")
    assert loaded.config.store.mapped_file_size_commit_log == 5_000_000
    assert {"storePathIndex", "filterServerNums"} <= set(loaded.without_effect)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["warmMapedFileEnable=true"], ["warmMapedFileEnable (needs commitLogWriteMode=mapped)"]),
        (["warmMapedFileEnable=true", "commitLogWriteMode=mapped"], []),
        (["warmMapedFileEnable=false"], []),
        (
            ["warmMapedFileEnable=true", "transientStorePoolEnable=true"],
            [
                "warmMapedFileEnable (needs transientStorePoolEnable=false, "
                "commitLogWriteMode=mapped)"
            ],
        ),
        (
            ["transientStorePoolSize=3"],
            ["transientStorePoolSize (needs transientStorePoolEnable=true)"],
        ),
        (["syncFlushTimeout=1000"], ["syncFlushTimeout (needs flushDiskType=SYNC_FLUSH)"]),
        (["syncFlushTimeout=1000", "flushDiskType=SYNC_FLUSH"], []),
        (
            ["flushCommitLogThoroughInterval=5000"],
            ["flushCommitLogThoroughInterval (needs flushCommitLogLeastPages above 0)"],
        ),
        (["flushCommitLogThoroughInterval=5000", "flushCommitLogLeastPages=4"], []),
        (
            ["enableCalcFilterBitMap=true", "haSlaveFallbehindMax=5"],
            ["enableCalcFilterBitMap", "haSlaveFallbehindMax (needs brokerRole=SYNC_MASTER)"],
        ),
    ],
)
def test_keys_that_do_nothing_with_the_other_values_are_named(
    settings: list[str], told: list[str]
) -> None:
    assert _load(*settings).without_effect == told


def test_a_name_server_knows_only_its_own_keys() -> None:
    sources = Sources(None, {"SKYLARKMQ_FLUSH_DISK_TYPE": "x"}, ["listenPort=0"])
    loaded = load_namesrv_config(sources)
    assert loaded.config.listen_port == 0
    assert loaded.unknown_variables == ["SKYLARKMQ_FLUSH_DISK_TYPE"]
    with pytest.raises(ConfigError, match="no such key"):
        load_namesrv_config(Sources(settings=["flushDiskType=SYNC_FLUSH"]))
    with pytest.raises(ConfigError, match="not supported yet"):
        load_namesrv_config(Sources(settings=["clusterTest=true"]))


def test_effective_values_tell_value_and_origin() -> None:
    rows = {key: (value, origin) for key, value, origin in effective_values(_load("listenPort=7"))}
    assert rows["listenPort"] == ("7", "--set")
    assert rows["flushDiskType"] == ("ASYNC_FLUSH", "default")
    assert rows["autoCreateTopicEnable"] == ("true", "default")
    assert rows["brokerName"] == ("node1", "default")
    assert rows["storePathCommitLog"] == ("", "default")
    assert "store" not in rows


def test_the_variable_of_the_kernel_is_no_setting() -> None:
    loaded = load_broker_config(Sources(environment={PURE_VARIABLE: "1"}))
    assert loaded.unknown_variables == []
