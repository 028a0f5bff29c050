"""The files that the pages about operations show: read as the machine would read them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.config.config_file import Sources, load_broker_config

OPERATIONS = Path(__file__).parents[1] / "docs" / "operations"
DOCKERFILE = (OPERATIONS.parents[1] / "Dockerfile").read_text("utf-8")


def block(page: str, language: str) -> str:
    """Return the first block of that language on a page."""
    found = re.search(
        rf"^```{language}\n(.*?)^```", (OPERATIONS / page).read_text("utf-8"), re.M | re.S
    )
    assert found is not None
    return found[1]


def test_the_manifest_fits_the_image_and_the_broker() -> None:
    yaml: Any = pytest.importorskip("yaml", reason="comes with the documentation tool")
    service, workload = yaml.safe_load_all(block("kubernetes.md", "yaml"))
    assert (service["kind"], workload["kind"]) == ("Service", "StatefulSet")
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == workload["spec"]["selector"]["matchLabels"]
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    assert workload["spec"]["replicas"] == 1
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    exposed = re.search(r"^EXPOSE (.+)$", DOCKERFILE, re.M)
    assert exposed is not None
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert sorted(ports.values()) == sorted(map(int, exposed[1].split()))
    assert {port["name"]: port["port"] for port in service["spec"]["ports"]} == {
        name: port for name, port in ports.items() if name != "http"
    }
    user = pod["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in DOCKERFILE
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    assert probes == {
        "startup": {"path": "/readyz", "port": "http"},
        "liveness": {"path": "/livez", "port": "http"},
    }
    assert "VOLUME /data" in DOCKERFILE
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] == "/data"
    environment = {entry["name"]: entry.get("value", "10.0.0.1") for entry in container["env"]}
    config = load_broker_config(Sources(environment=environment, host_name="host")).config
    assert (config.broker_name, config.broker_ip1) == ("broker-a", "10.0.0.1")
