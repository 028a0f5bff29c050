"""The Helm chart: its values are documented and checked, its keys and ports are the broker's."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skylarkmq import __version__
from skylarkmq.broker.config.config_file import (
    Sources,
    load_broker_config,
    load_namesrv_config,
)
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.draining import draining
from skylarkmq.common.config_fields import keys_of
from skylarkmq.tools.console.cli import console
from tests.broker.draining.test_draining import two_shards
from tests.deploy import image
from tests.deploy.chart import CHART, check, parsed, schema, template, values
from tests.deploy.tools import DEPLOY, program, run
from tests.support.live_broker import live_broker

Objects = dict[tuple[str, str], dict[str, Any]]
TEMPLATES = {path.name: path.read_text("utf-8") for path in (CHART / "templates").iterdir()}
REPLICAS = {
    "mode": "replicas",
    "broker": {"replicas": 3},
    "etcd": {"endpoints": ["http://etcd-0.etcd:2379", "http://etcd-1.etcd:2379"]},
}
EVERYTHING: dict[str, Any] = {
    **REPLICAS,
    "broker": {
        "replicas": 3,
        "config": {"flushDiskType": "SYNC_FLUSH", "haAllowedAddresses": "10.244.*.*"},
        "advertise": "podIP",
        "persistence": {"storageClass": "fast", "annotations": {"a": "b"}},
        "podLabels": {"team": "orders"},
        "podAnnotations": {"x": "y"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "queues", "operator": "Exists"}],
        "priorityClassName": "high",
        "extraEnv": [{"name": "MORE", "value": "1"}],
    },
    "etcd": {**REPLICAS["etcd"], "existingSecret": "etcd"},  # type: ignore[dict-item]
    "acl": {"enabled": True, "existingSecret": "accounts"},
    "tls": {"mode": "enforcing", "existingSecret": "certificate"},
    "nameServers": {"replicas": 3, "config": {"orderMessageEnable": True}},
    "image": {"tag": "1.2.3", "pullSecrets": ["registry"]},
    "grpc": {"enabled": True},
    "console": {"enabled": True, "write": True, "hostNames": ["mq.example"]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {
        "enabled": True,
        "clients": [{"namespaceSelector": {"matchLabels": {"team": "orders"}}}],
        "metrics": [{"namespaceSelector": {}}],
        "console": [{"namespaceSelector": {}}],
    },
}
CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "three shards": {"broker": {"replicas": 3}},
    "three replicas": REPLICAS,
    "shards with gRPC and the console": {
        "broker": {"replicas": 3},
        "grpc": {"enabled": True},
        "console": {"enabled": True},
    },
    "everything": EVERYTHING,
    "as little as possible": {
        "broker": {
            "drain": {"enabled": False},
            "podDisruptionBudget": {"enabled": False},
            "topologySpreadConstraints": [],
        },
        "nameServers": {"replicas": 1, "podDisruptionBudget": {"enabled": False}},
        "serviceAccount": {"create": False},
    },
}


def leaves(table: dict[str, Any], described: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield where values and their schema do not have the same members."""
    members = described.get("properties", {})
    for key in table.keys() ^ (members.keys() - {"global"}):
        yield f"{path}{key}"
    for key, value in table.items():
        below = members.get(key, {})
        if isinstance(value, dict) and "properties" in below:
            yield from leaves(value, below, f"{path}{key}.")


def test_every_value_has_its_place_in_the_schema_and_nothing_else_is_let_in() -> None:
    assert list(leaves(values(), schema())) == []

    def closed(described: dict[str, Any]) -> bool:
        members = described.get("properties", {})
        is_closed = not members or described["additionalProperties"] is False
        return is_closed and all(closed(one) for one in members.values())

    assert closed(schema())


def test_every_group_of_values_is_described() -> None:
    lines = (CHART / "values.yaml").read_text("utf-8").splitlines()
    inside = {
        "image",
        "broker",
        "nameServers",
        "serviceAccount",
        "tls",
        "acl",
        "prometheusRule",
    }
    for above, line in pairwise(lines):
        found = re.match(r"(\w+):", line)
        if found is not None and found[1] not in inside:
            assert above.startswith("#"), line


@pytest.mark.parametrize(
    ("file", "config"),
    [("broker-config.yaml", BrokerConfig), ("namesrv-config.yaml", NamesrvConfig)],
)
def test_every_key_in_the_configuration_is_one_of_the_server(file: str, config: type) -> None:
    helpers = TEMPLATES["_helpers.tpl"]
    shared = helpers[helpers.index('define "skylarkmq.sharedConfig"') :]
    text = TEMPLATES[file] + shared[: shared.index("{{- end -}}")]
    keys = set(re.findall(r"^ *([a-zA-Z][a-zA-Z.]+)=", text, re.M))
    assert len(keys) > 5
    assert keys - keys_of(config).keys() - keys_of(TlsConfig).keys() == set()


def test_the_variables_are_keys_too() -> None:
    names = set(re.findall(r"SKYLARKMQ_BROKER_\w+|SKYLARKMQ_CON\w+", TEMPLATES["broker.yaml"]))
    given = {"SKYLARKMQ_BROKER_ID": "0", "SKYLARKMQ_BROKER_IP1": "10.0.0.1"}
    sources = Sources(environment={**dict.fromkeys(names, "x"), **given}, host_name="host")
    assert len(names) == 4 and not load_broker_config(sources).unknown_variables


def test_ports_user_and_release_are_those_of_the_image() -> None:
    text = "".join(TEMPLATES[f"{one}.yaml"] for one in ("broker", "namesrv", "console"))
    assert {int(port) for port in re.findall(r"containerPort: (\d+)", text)} == image.ports()
    assert {int(port) for port in re.findall(r" port: (\d+)", text)} == image.ports()
    security = values()["podSecurityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == image.user()
    assert security["fsGroup"] == image.user()[1]
    assert f'appVersion: "{__version__}"' in (CHART / "Chart.yaml").read_text("utf-8")
    assert "hostNetwork" not in "".join(TEMPLATES.values())


# With helm


@pytest.mark.interop
@pytest.mark.parametrize("case", CASES)
def test_helm_and_kubernetes_accept_what_is_rendered(case: str, tmp_path: Path) -> None:
    run(program("helm"), "lint", "--strict", "--kube-version", "1.31.0", str(CHART), "--set",
        "etcd.endpoints={http://etcd:2379}")  # fmt: skip
    check(template(tmp_path, CASES[case]), tmp_path)


def rendered(tmp_path: Path, case: str) -> Objects:
    return parsed(template(tmp_path, CASES[case]))


def broker_config(objects: Objects, tmp_path: Path, pod: str, index: int) -> BrokerConfig:
    """Return the configuration that a broker's pod runs with."""
    file = tmp_path / "broker.conf"
    file.write_text(objects["ConfigMap", "mq-skylarkmq-broker"]["data"]["broker.conf"])
    container = objects["StatefulSet", "mq-skylarkmq-broker"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    by_field = {"status.podIP": "10.0.0.7", "metadata.name": pod}
    environment = image.settings()
    for one in container["env"]:
        if "value" in one:
            text = one["value"].replace("$(POD_NAME)", pod)
            for name, known in environment.items():
                text = text.replace(f"$({name})", known)
            environment[one["name"]] = text
        else:
            path = one["valueFrom"].get("fieldRef", {}).get("fieldPath", "")
            is_index = path.endswith("pod-index']")
            environment[one["name"]] = str(index) if is_index else by_field.get(path, "someone")
    loaded = load_broker_config(Sources(file=file, environment=environment, host_name=pod))
    assert not loaded.unknown_variables
    return loaded.config


@pytest.mark.interop
def test_shards_have_names_and_addresses_of_their_own(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "three shards")
    configs = [broker_config(objects, tmp_path, f"mq-skylarkmq-broker-{n}", n) for n in range(3)]
    assert len({config.broker_name for config in configs}) == 3
    assert {config.broker_id for config in configs} == {0}
    for number, config in enumerate(configs):
        host = f"mq-skylarkmq-broker-{number}.mq-skylarkmq-broker.queues.svc.cluster.local"
        assert config.broker_ip1 == host
        assert str(config.namesrv_addr).count(":9876") == 2
        assert str(config.store.store_path_root_dir) == "/data/store"
    claims = objects["StatefulSet", "mq-skylarkmq-broker"]["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == ["data"]


@pytest.mark.interop
def test_replicas_are_one_set(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "three replicas")
    stateful = objects["StatefulSet", "mq-skylarkmq-broker"]["spec"]
    assert stateful["ordinals"] == {"start": 1}
    configs = [broker_config(objects, tmp_path, f"mq-skylarkmq-broker-{n}", n) for n in range(1, 4)]
    assert {config.broker_name for config in configs} == {"broker-a"}
    assert [config.broker_id for config in configs] == [1, 2, 3]
    assert all(config.is_replica and config.min_in_sync_replicas == 2 for config in configs)


@pytest.mark.interop
def test_secrets_come_as_files_and_everything_else_as_it_was_asked_for(tmp_path: Path) -> None:
    objects = rendered(tmp_path, "everything")
    config = broker_config(objects, tmp_path, "mq-skylarkmq-broker-1", 1)
    assert config.acl_enable and config.tls.tls_server_mode == "enforcing"
    assert config.store.flush_disk_type == "SYNC_FLUSH"
    assert (config.controller_user, config.broker_ip1) == ("someone", "10.0.0.7")
    pod = objects["StatefulSet", "mq-skylarkmq-broker"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    for path, secret in (
        (config.tls.tls_server_cert_path, "certificate"),
        (config.controller_password_file, "etcd"),
    ):
        assert path is not None
        assert secrets[mounts[str(path.parent)]] == secret
    assert secrets[mounts[f"{config.rocketmq_home}/conf"]] == "accounts"
    assert container["startupProbe"]["httpGet"]["scheme"] == "HTTPS"
    names = objects["ConfigMap", "mq-skylarkmq-namesrv"]["data"]["namesrv.conf"]
    (tmp_path / "namesrv.conf").write_text(names)
    found = load_namesrv_config(Sources(file=tmp_path / "namesrv.conf", host_name="host")).config
    assert found.acl_enable and found.order_message_enable


@pytest.mark.interop
def test_clients_of_rocketmq_5_come_by_one_service(tmp_path: Path) -> None:
    """Each broker answers for all; with LOCAL a shard names itself after the first question."""
    for case in ("shards with gRPC and the console", "everything"):
        objects = rendered(tmp_path, case)
        broker = broker_config(objects, tmp_path, "mq-skylarkmq-broker-1", 1)
        assert (broker.grpc_listen_port, broker.grpc_proxy_mode) == (8081, "CLUSTER")
        assert broker.grpc_advertised_address is None
        (port,) = objects["Service", "mq-skylarkmq-grpc"]["spec"]["ports"]
        assert port["port"] == 8081
    clients, *_ = objects["NetworkPolicy", "mq-skylarkmq"]["spec"]["ingress"]
    assert {"port": "grpc"} in clients["ports"]
    local = {"grpc": {"enabled": True}, "broker": {"config": {"grpcProxyMode": "LOCAL"}}}
    objects = parsed(template(tmp_path, local))
    shard = broker_config(objects, tmp_path, "mq-skylarkmq-broker-2", 2)
    assert shard.grpc_advertised_address == f"{shard.broker_ip1}:8081"


@pytest.mark.interop
@pytest.mark.parametrize("case", ["shards with gRPC and the console", "everything"])
def test_the_console_understands_how_it_is_started(case: str, tmp_path: Path) -> None:
    objects = rendered(tmp_path, case)
    pod = objects["Deployment", "mq-skylarkmq-console"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name, *words = container["args"]
    words = [word for word in words if not word.startswith("--tls-ca=")]  # that file is not here
    assert name == "console"
    given = console.make_context(name, [*words]).params
    assert given["listen"] == ("0.0.0.0", 8080)
    is_secured = case == "everything"
    assert (given["login"], given["write"]) == (is_secured, is_secured)
    ends = ("", ".queues", ".queues.svc", ".queues.svc.cluster.local")
    hosts = {f"mq-skylarkmq-console{end}" for end in ends}
    assert set(given["names"]) == (hosts | {"mq.example"} if is_secured else hosts)
    assert f"--namesrv={broker_config(objects, tmp_path, 'pod-1', 1).namesrv_addr}" in words
    assert len(container["args"]) == 1 + len(words) + is_secured


@pytest.mark.interop
@pytest.mark.parametrize("case", ["defaults", "everything"])
def test_pods_have_no_rights_and_time_to_drain(case: str, tmp_path: Path) -> None:
    objects = rendered(tmp_path, case)
    for (kind, _), found in objects.items():
        if kind not in ("StatefulSet", "Deployment"):
            continue
        pod = found["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False and not pod["enableServiceLinks"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert found["spec"]["selector"]["matchLabels"].items() <= (
            found["spec"]["template"]["metadata"]["labels"].items()
        )
    pod = objects["StatefulSet", "mq-skylarkmq-broker"]["spec"]["template"]["spec"]
    command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    wait = re.search(r"skylarkmq drain --wait (\d+)", command)
    assert wait is not None
    assert pod["terminationGracePeriodSeconds"] >= int(wait[1]) + 60


@pytest.mark.parametrize("alone", [True, False])
async def test_the_command_before_a_stop_moves_the_clients_of_the_pod(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the shell of the container runs it; the broker's page is elsewhere than in a pod."""
    monkeypatch.setattr(draining, "QUIET_S", 0.3)
    monkeypatch.setattr(draining, "LOOK_EVERY_S", 0.05)
    (command,) = re.findall(r"- (skylarkmq drain .*)", TEMPLATES["broker.yaml"])
    for name, value in (("waitSeconds", 30), ("refreshSeconds", 0)):
        command = command.replace(f"{{{{ $broker.drain.{name} }}}}", str(value))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    opened = live_broker(tmp_path) if alone else two_shards(tmp_path)
    async with opened as found:
        broker = found[1] if isinstance(found, tuple) else found
        assert broker.metrics_address is not None
        address = "--address {}:{}".format(*broker.metrics_address)
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command.replace("skylarkmq drain", f"skylarkmq drain {address}"),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        text = (await process.communicate())[0].decode()
    assert process.returncode == 0, text
    assert ("nowhere to go" if alone else "drained: ") in text


@pytest.mark.interop
def test_alerts_come_from_the_file_of_prometheus(tmp_path: Path) -> None:
    rules = DEPLOY / "prometheus" / "rules.yml"
    if not rules.exists():
        rules = tmp_path / "rules.yml"
        rules.write_text(
            "# Alerts.\ngroups:\n  - name: g\n    rules:\n      - alert: A\n"
            "        expr: up == 0\n        annotations: {summary: '{{ $labels.instance }}'}\n"
        )
    text = template(
        tmp_path, {"prometheusRule": {"enabled": True}}, "--set-file",
        f"prometheusRule.rules={rules}",
    )  # fmt: skip
    found = parsed(text)["PrometheusRule", "mq-skylarkmq"]["spec"]
    assert found["groups"] and "$labels" in str(found)


@pytest.mark.interop
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mode": "both"}, "mode"),
        ({"broker": {"replica": 3}}, "replica"),
        ({"broker": {"config": {"brokerName": "x"}}}, "brokerName"),
        ({"broker": {"config": {"grpcListenPort": 8081}}}, "grpcListenPort"),
        ({"console": {"enabled": True, "write": True}}, "acl.enabled"),
        ({"console": {"enabled": True}, "tls": {"mode": "enforcing"}}, "tls.existingSecret"),
        ({"mode": "replicas"}, "etcd.endpoints"),
        ({**REPLICAS, "acl": {"enabled": True, "existingSecret": "x"}}, "haAllowedAddresses"),
        ({"acl": {"enabled": True}}, "acl.existingSecret"),
        ({"prometheusRule": {"enabled": True}}, "--set-file"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=why):
        template(tmp_path, changes)


@pytest.mark.interop
def test_the_commands_of_the_page_render(tmp_path: Path) -> None:
    page = (DEPLOY.parent / "docs" / "operations" / "kubernetes.md").read_text("utf-8")
    lines = re.findall(r"^    helm (install|upgrade) mq (\S+) (.*)$", page, re.M)
    assert len(lines) >= 5
    for _, chart, words in lines:
        assert DEPLOY.parent / chart == CHART
        more = shlex.split(words.replace("--reset-then-reuse-values", ""))
        if not (DEPLOY / "prometheus" / "rules.yml").exists():
            (tmp_path / "rules.yml").write_text("groups: []\n")
            more = [one.replace("deploy/prometheus", str(tmp_path)) for one in more]
        check(template(tmp_path, {}, *more), tmp_path)
