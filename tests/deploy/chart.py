"""The Helm chart: rendered by helm, and what Kubernetes says about the result."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import DEPLOY, program, run

CHART = DEPLOY / "helm" / "skylarkmq"
VERSION = "1.31.0"
"""Of Kubernetes."""


def values() -> dict[str, Any]:
    """Return the defaults."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def schema() -> dict[str, Any]:
    """Return what values may be."""
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    return found


def template(folder: Path, changes: dict[str, Any], *more: str) -> str:
    """Return what is rendered for a release `mq` in the namespace `queues`."""
    file = folder / "values.yaml"
    file.write_text(json.dumps(changes))  # JSON is YAML, and leaves no text unquoted
    words = ("template", "mq", str(CHART), "--namespace", "queues", "--kube-version", VERSION)
    return run(program("helm"), *words, "--values", str(file), *more)


def parsed(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects by kind and name."""
    found = [one for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def check(text: str, folder: Path) -> None:
    """Have kubeconform check objects; those of the Prometheus operator are none of Kubernetes'."""
    place = schemas(folder)
    location = f"{place}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    words = ["-strict", "-summary", "-kubernetes-version", VERSION, "-schema-location", location]
    words += ["-skip", "ServiceMonitor,PrometheusRule"]
    told = run(program("kubeconform"), *words, text=text)
    assert "Invalid: 0, Errors: 0" in told, told


def schemas(folder: Path) -> Path:
    """Return a folder with the schemas of Kubernetes, which refer to each other as files.

    Those of `kubernetes-validate` have addresses on the web as their names.
    """
    found = importlib.util.find_spec("kubernetes_validate")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no schemas of Kubernetes here: pip install kubernetes-validate")
    package = Path(found.submodule_search_locations[0]) / "kubernetes-json-schema"
    place = folder / "schemas"
    place.mkdir(exist_ok=True)
    for file in (package / f"v{VERSION}-local-strict").glob("*.json"):
        if file.name == "_definitions.json" or re.fullmatch(
            r"[a-z]+(-[a-z]+)?-v1\.json", file.name
        ):
            text = file.read_text("utf-8").replace('"/api/_definitions.json', '"_definitions.json')
            text = re.sub(r',\s*"\$id": "[^"]*"|"\$id": "[^"]*",', "", text)
            text = re.sub(r',\s*"\$schema": "[^"]*"|"\$schema": "[^"]*",', "", text)
            (place / file.name).write_text(text, "utf-8")
    return place
