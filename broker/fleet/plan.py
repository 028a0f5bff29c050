"""Which processes a fleet has: names, folders, ports.

    broker   name             folder                     ports
    0        brokerName       storePathRootDir           listenPort
    i        brokerName-i     storePathRootDir/broker-i  listenPort + 10 i

The fast port is two below each listen port, the port for slaves one above it. So broker 0 is the
broker that a single process runs: when `brokers` grows from 1, its messages, offsets and message
ids stay what they are, and nothing is moved. A folder is inside of that of broker 0 because that is
what is mounted, backed up and given rights to. Other paths, which may lie anywhere, get `-i` at
their end: a `storePathCommitLog` holds nothing but log files, also for RocketMQ.

When `brokers` shrinks, the messages of those that are left out stay where they are, and nobody
serves them: the start warns of each such folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skylarkmq.broker.config.config_file import (
    ENVIRONMENT_PREFIX,
    NAMESRV_ADDR_VARIABLE,
    NAMESRV_KEYS,
    ROCKETMQ_HOME_VARIABLE,
    shown_value,
    values_of,
    variable_of,
)
from skylarkmq.broker.config.settings import (
    BROKERS_MAX,
    FAST_PORT_DISTANCE,
    HA_PORT_DISTANCE,
    BrokerConfig,
)
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.kernel import PURE_VARIABLE
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.store.folder import StorePaths

PORT_STRIDE: Final = 10
"""From one broker's ports to those of the next."""
PORT_MAX: Final = 65535
NAMESRV_NAME: Final = "namesrv"
_WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Member:
    """One broker of a fleet: what it has of its own."""

    name: str
    keys: Mapping[str, str]  # key -> text, stronger than all that the user has said


def members_of(config: BrokerConfig) -> list[Member]:
    """Return the brokers of a fleet.

    Raises:
        ConfigError: two of its ports are the same, or a path or a role cannot be shared out.
    """
    _check_roles(config)
    _check_ports(config)
    log_folder = config.store.store_path_commit_log
    if log_folder is not None and os.path.ismount(log_folder):
        cure = "name a folder in it: those of the other brokers lie beside this one"
        raise ConfigError("storePathCommitLog", log_folder, cure)
    return [Member(name_of(config, index), _keys(config, index)) for index in range(config.brokers)]


def name_of(config: BrokerConfig, index: int) -> str:
    """Return the name of a broker."""
    return f"{config.broker_name}-{index}" if index else config.broker_name


def folder_of(root: Path, index: int) -> Path:
    """Return the folder of a broker's store."""
    return root / f"broker-{index}" if index else root


def _keys(config: BrokerConfig, index: int) -> dict[str, str]:
    """Return the keys that make one broker differ from the others."""
    store = config.store
    keys = {
        "brokerName": name_of(config, index),
        "storePathRootDir": str(folder_of(store.store_path_root_dir, index)),
        "listenPort": str(config.listen_port and config.listen_port + PORT_STRIDE * index),
    }
    if config.grpc_listen_port:
        keys["grpcListenPort"] = str(config.grpc_listen_port + PORT_STRIDE * index)
    if store.ha_listen_port:
        keys["haListenPort"] = str(store.ha_listen_port + PORT_STRIDE * index)
    if store.store_path_commit_log is not None and index:
        keys["storePathCommitLog"] = f"{store.store_path_commit_log}-{index}"
    if config.audit_log_path is not None and index:
        keys["auditLogPath"] = str(_beside(config.audit_log_path, str(index)))
    return keys


def _beside(path: Path, mark: str) -> Path:
    return path.with_name(f"{path.stem}-{mark}{path.suffix}")


def _check_roles(config: BrokerConfig) -> None:
    """Refuse several slaves by one configuration: each would follow another master.

    Raises:
        ConfigError: there would be several.
    """
    store = config.store
    if config.brokers > 1 and config.is_replica:
        cure = "a replica is one process: start each with brokers=1"
        raise ConfigError("controllerEndpoints", config.controller_endpoints, cure)
    if config.brokers > 1 and (store.is_slave or store.ha_master_address is not None):
        key = "brokerRole" if store.is_slave else "haMasterAddress"
        value = store.broker_role if store.is_slave else store.ha_master_address
        cure = "a slave follows one master, so it is one process: start each with brokers=1"
        raise ConfigError(key, value, cure)


def _check_ports(config: BrokerConfig) -> None:
    """Refuse a port that two listeners would want.

    Raises:
        ConfigError: there is one, or there are not enough ports.
    """
    users: dict[int, str] = {}
    for port, user in _ports(config):
        if port > PORT_MAX:
            cure = f"{user} would listen on port {port}; use a smaller listenPort, or fewer brokers"
            raise ConfigError("brokers", config.brokers, cure)
        if port in users:
            cure = f"port {port} would be that of {users[port]} and of {user}; change one of them"
            raise ConfigError("brokers", config.brokers, cure)
        users[port] = user


def _ports(config: BrokerConfig) -> Iterator[tuple[int, str]]:
    for index in range(config.brokers):
        name, shift = name_of(config, index), PORT_STRIDE * index
        ha_port = config.store.ha_listen_port
        if config.listen_port:
            port = config.listen_port + shift
            yield port, name
            yield port - FAST_PORT_DISTANCE, f"{name} (fast port)"
            if not ha_port:
                yield port + HA_PORT_DISTANCE, f"{name} (port for slaves)"
        if ha_port:
            yield ha_port + shift, f"{name} (haListenPort)"
        if config.grpc_listen_port:
            yield config.grpc_listen_port + shift, f"{name} (grpcListenPort)"
    if config.metrics_prom_exporter_port:
        yield config.metrics_prom_exporter_port, "metrics (metricsPromExporterPort)"
    if config.namesrv_listen_port:
        yield config.namesrv_listen_port, "the name server (namesrvListenPort)"


def unserved_folders(config: BrokerConfig) -> list[Path]:
    """Return folders of brokers that an earlier start had and this one has not. Blocks."""
    folders = (
        folder_of(config.store.store_path_root_dir, index)
        for index in range(config.brokers, BROKERS_MAX)
    )
    # What may not be looked at is none: the start says so, and why.
    return [folder for folder in folders if os.path.exists(folder)]


def reachable(host: str, port: int) -> str:
    """Return `host:port` by which a process of this machine reaches what is bound to `host`."""
    return str(HostAddress(_WILDCARDS.get(host, host), port))


def keys_for_namesrv(config: BrokerConfig, namesrv_address: str) -> dict[str, str]:
    """Return the keys by which a broker finds the fleet's name server, and those named beside it.

    Over TLS that is enforced, and with nobody named who signs its certificate, the certificate is
    not checked: the name server is a process of the same machine, below the same supervisor.
    """
    others = f";{config.namesrv_addr}" if config.namesrv_addr else ""
    keys = {"namesrvAddr": namesrv_address + others}
    tls = config.tls
    if tls.uses_client_tls and not others and tls.tls_client_trust_cert_path is None:
        keys["tls.client.authServer"] = "false"
    return keys


def namesrv_environment(
    config: BrokerConfig, port: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the name server, which has its whole configuration.

    In the environment, and not on the command line, because a password may be among the values.
    """
    values = values_of(config)
    keys = {key: values[key] for key in NAMESRV_KEYS if key in values}
    keys["listenPort"] = port
    keys["kvConfigPath"] = StorePaths(config.store.store_path_root_dir).own / "kvConfig.json"
    if config.audit_log_path is not None:
        keys["auditLogPath"] = _beside(config.audit_log_path, NAMESRV_NAME)
    del keys["tls.config.file"]  # what stands there is among the values
    java = (NAMESRV_ADDR_VARIABLE, ROCKETMQ_HOME_VARIABLE)
    rest = {
        name: text
        for name, text in environment.items()
        if name not in java and (not name.startswith(ENVIRONMENT_PREFIX) or name == PURE_VARIABLE)
    }
    return rest | {variable_of(key): shown_value(value) for key, value in keys.items()}
