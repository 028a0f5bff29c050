"""The image: what the Dockerfile promises to those who run it."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from skylarkmq import __version__
from skylarkmq.broker.config.config_file import Sources, load_broker_config
from skylarkmq.broker.fleet.console import DEFAULT_PLACE
from skylarkmq.cli import COMMANDS
from tests.deploy import image
from tests.deploy.tools import ROOT, program, run


def test_it_serves_by_default_with_keys_that_the_broker_knows() -> None:
    loaded = load_broker_config(Sources(environment=image.settings(), host_name="host"))
    config = loaded.config
    assert not loaded.unknown_variables
    assert (config.broker_name, config.bind_address) == ("broker-a", "0.0.0.0")
    assert str(config.store.store_path_root_dir) == f"{image.instruction('VOLUME')}/store"
    assert json.loads(image.instruction("ENTRYPOINT")) == ["skylarkmq"]
    assert json.loads(image.instruction("CMD")) == ["serve"]


def test_its_ports_are_those_of_the_defaults() -> None:
    config = load_broker_config(Sources(environment=image.settings(), host_name="host")).config
    main = config.listen_port
    wanted = {main, main - 2, config.ha_port(main)}
    wanted |= {config.namesrv_listen_port, config.metrics_prom_exporter_port}
    wanted |= {8081, int(DEFAULT_PLACE.rpartition(":")[2])}  # gRPC as RocketMQ's; the console
    assert image.ports() == wanted


def test_its_health_check_is_a_command_and_it_stops_by_sigterm() -> None:
    _, _, command = image.instruction("HEALTHCHECK").partition(" CMD ")
    words = json.loads(command)
    assert words[:2] == ["skylarkmq", "health"] and words[1] in COMMANDS
    assert {int(word.rpartition(":")[2]) for word in words[3::2]} <= image.ports()
    assert image.instruction("STOPSIGNAL") == "SIGTERM"


def test_it_starts_from_byte_code_and_writes_none() -> None:
    assert "compileall" in image.TEXT, "the base image comes without that of Python's own modules"
    assert image.environment()["PYTHONDONTWRITEBYTECODE"] == "1"


def test_its_labels_say_which_release_it_is() -> None:
    assert f"ARG VERSION={__version__}\n" in image.TEXT
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in image.TEXT


def test_its_page_names_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (given,) = re.findall(r"^ARG EXTRAS=(.+)$", image.TEXT, re.M)
    page = (ROOT / "docs" / "start" / "docker.md").read_text("utf-8")
    (named,) = re.findall(r"with the extras (.+)\.$", page, re.M)
    (example,) = re.findall(r"EXTRAS=(\S+) -t", page)
    assert re.findall(r"`(\w+)`", named) == given.split(",")
    assert {*given.split(","), *example.split(",")} <= project["optional-dependencies"].keys()


def test_it_is_nobody_s_root() -> None:
    assert image.user() == (3000, 3000)
    assert image.instruction("WORKDIR") == image.instruction("VOLUME")


@pytest.mark.interop
@pytest.mark.parametrize("file", ["Dockerfile", "deploy/spark/Dockerfile"])
def test_hadolint_accepts_it(file: str) -> None:
    run(program("hadolint"), file)
