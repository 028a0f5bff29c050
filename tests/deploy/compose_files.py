"""The compose files of deploy/, read as compose reads what is in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from skylarkmq.broker.config.config_file import (
    Loaded,
    Sources,
    load_broker_config,
    load_namesrv_config,
)
from tests.deploy import image
from tests.deploy.tools import DEPLOY

NAMES = ("compose.yaml", "compose.replicas.yaml", "spark/compose.yaml")
_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


@dataclass(frozen=True)
class Server:
    """A service that runs our image."""

    name: str
    service: dict[str, Any]

    @property
    def command(self) -> str:
        """Its command, `serve`, `broker` or `namesrv`."""
        (word,) = self.service.get("command", ["serve"])
        return str(word)

    @property
    def environment(self) -> dict[str, str]:
        """Its variables, without those that the user may set, over those of the image."""
        own = self.service.get("environment", {})
        return {
            **image.settings(),
            **{key: _VARIABLE.sub(r"\1", str(value)) for key, value in own.items()},
        }

    def load(self) -> Loaded[Any]:
        """Return the configuration that it runs with."""
        sources = Sources(environment=self.environment, host_name="host")
        if self.command == "namesrv":
            return load_namesrv_config(sources)
        return load_broker_config(sources)

    @property
    def published(self) -> set[int]:
        """The ports inside that can be reached from outside."""
        ports = self.service.get("ports", [])
        return {int(_VARIABLE.sub(r"\1", port).rpartition(":")[2]) for port in ports}


def read(name: str) -> dict[str, Any]:
    """Return a compose file."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / name).read_text("utf-8"))
    return found


def servers(name: str) -> list[Server]:
    """Return the services of a file that run our image."""
    services = read(name)["services"].items()
    return [Server(key, one) for key, one in services if one.get("image") == "skylarkmq"]
