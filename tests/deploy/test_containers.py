"""The image as it runs: built from this tree by Podman, with each promise of its page tried."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import image
from tests.deploy.containers import Containers, containers, until
from tests.support.certificates import Authority

pytestmark = pytest.mark.image
SETTINGS = (
    "--env=SKYLARKMQ_BROKER_IP1=127.0.0.1",
    f"--env=SKYLARKMQ_MAPPED_FILE_SIZE_COMMIT_LOG={16 << 20}",
    "--env=SKYLARKMQ_DISK_SPACE_WARNING_LEVEL_RATIO=99",  # this machine's disk may be rather full
)
CLIENT = ("-m", "skylarkmq.cli")
ADDED_MAX = 160 << 20
"""Bytes above the base: what a pull takes, uncompressed."""
ROUTE = """
import asyncio, grpc
from tests.broker.grpc.rig import Client
from skylarkmq.protocol.v5 import schema_pb2 as schema

async def ask():
    async with grpc.aio.insecure_channel("127.0.0.1:8081") as channel:
        topic = schema.Resource(name="orders")
        addresses = schema.Address(host="127.0.0.1", port=8081)
        endpoints = schema.Endpoints(scheme=schema.IPv4, addresses=[addresses])
        asked = schema.QueryRouteRequest(topic=topic, endpoints=endpoints)
        print((await Client(channel).call("QueryRoute", asked)).message_queues[0].broker.name)

asyncio.run(ask())
"""
PAGE = """
import urllib.request
with urllib.request.urlopen("http://127.0.0.1:8080/", timeout=10) as page:
    print(page.status, page.read().decode())
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Containers]:
    with containers() as found:
        yield found


@pytest.fixture
def data(podman: Containers) -> Iterator[tuple[str, ...]]:
    """A volume for the broker's data, as an option."""
    name = podman.podman("volume", "create").strip()
    yield (f"--volume={name}:/data", *SETTINGS)
    podman.podman("volume", "rm", "--force", name)


def bodies(podman: Containers, topic: str, count: int) -> list[str]:
    options = ("--group", "g", "--from", "first", "--max", str(count))
    lines = podman.host(*CLIENT, "consume", topic, *options).splitlines()
    return [json.loads(line)["body"] for line in lines]


def test_it_has_what_its_commands_need_and_is_small(podman: Containers) -> None:
    listed = "import grpc, uvicorn, cryptography, rich, lz4, zstandard, opentelemetry"
    listed = listed.replace("grpc", "google.protobuf")
    kernel = "from skylarkmq import kernel; assert kernel.compiled is not None, kernel.why_pure"
    podman.podman("run", "--rm", "--pull=never", "--entrypoint=python", "skylarkmq", "-c",
                  f"{listed}; {kernel}")  # fmt: skip
    assert podman.added_size() < ADDED_MAX


def test_it_serves_as_nobody_with_a_read_only_root_and_stops_cleanly(
    podman: Containers, data: tuple[str, ...]
) -> None:
    with podman.running("broker", options=data):
        podman.until_healthy("broker")
        assert podman.podman("exec", "broker", "id", "-u").strip() == str(image.user()[0])
        assert podman.ask("exec", "broker", "touch", "/opt/mine").returncode
        podman.host(*CLIENT, "send", "orders", "from the host")
        with podman.running(
            "client", "send", "orders", "from a container", "--namesrv", "127.0.0.1:9876"
        ):
            assert podman.podman("wait", "client").strip() == "0"
        assert sorted(bodies(podman, "orders", 2)) == ["from a container", "from the host"]
        podman.podman("stop", "--time=60", "broker")
        state = podman.state("broker")
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False)
        assert "stopping" in podman.log("broker")


def test_a_new_container_has_what_a_killed_one_acknowledged(
    podman: Containers, data: tuple[str, ...]
) -> None:
    sent = [f"message {number}" for number in range(6)]
    with podman.running("broker", options=data):
        podman.until_healthy("broker")
        for body in sent[:2]:
            podman.host(*CLIENT, "send", "orders", body)
        podman.podman("exec", "broker", "sh", "-c",
                      "for n in $(seq 2 5); do skylarkmq send orders \"message $n\"; done"
                      )  # fmt: skip
        podman.podman("kill", "--signal=KILL", "broker")
        assert podman.podman("wait", "broker").strip() == "137"
    with podman.running("broker", options=data):
        podman.until_healthy("broker")
        assert sorted(bodies(podman, "orders", len(sent))) == sorted(sent)


def test_tls_with_a_certificate_of_ones_own(
    podman: Containers, data: tuple[str, ...], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certificate = authority.certificate_file("127.0.0.1")
    certificate.chmod(0o644)
    words = ("serve", "--set", "tls.server.mode=enforcing", "--set",
             "tls.server.certPath=/tls/server.pem")  # fmt: skip
    options = (*data, f"--volume={certificate}:/tls/server.pem:ro")
    with podman.running("broker", *words, options=options):
        podman.until_healthy("broker")
        secured = ("--tls-ca", str(authority.ca_file))
        told = podman.host(*CLIENT, "send", "orders", "in secret", *secured)
        assert json.loads(told)["status"] == "SEND_OK"


def test_grpc_and_the_console(podman: Containers, data: tuple[str, ...]) -> None:
    with podman.running("broker", "serve", "--set", "grpcListenPort=8081", options=data):
        podman.until_healthy("broker")
        podman.host(*CLIENT, "topic", "create", "orders", "--yes")
        assert podman.host("-c", ROUTE).strip() == "broker-a"
        words = ("console", "--listen", "0.0.0.0:8080", "--namesrv", "127.0.0.1:9876")
        nowhere = ("--image-volume=ignore",)  # to write: what a pod of the chart has
        with podman.running("console", *words, options=nowhere):
            until(lambda: "it only reads" in podman.log("console"), "the console")
            page = podman.host("-c", PAGE)
            assert page.startswith("200 ") and "broker-a" in page


def test_servers_without_a_metrics_page_are_healthy_too(podman: Containers) -> None:
    for words in (("namesrv",), ("console", "--listen", "0.0.0.0:8080")):
        with podman.running("server", *words):
            podman.until_healthy("server")
            podman.podman("stop", "--time=20", "server")
            assert podman.state("server")["ExitCode"] == 0


def test_a_name_server_and_a_broker_each_in_a_container(
    podman: Containers, data: tuple[str, ...]
) -> None:
    registers = ("broker", "--set", "namesrvAddr=127.0.0.1:9876")
    with (
        podman.running("names", "namesrv"),
        podman.running("broker", *registers, options=data),
    ):
        podman.until_healthy("broker")
        podman.host(*CLIENT, "send", "orders", "hello")
        assert bodies(podman, "orders", 1) == ["hello"]


def test_a_folder_of_somebody_else_is_refused_with_the_number_to_give_it_to(
    podman: Containers, tmp_path: Path
) -> None:
    options = (*SETTINGS, f"--volume={tmp_path}:/data")
    with podman.running("broker", options=options):
        assert podman.podman("wait", "broker").strip() == "1"
        told = podman.log("broker")
        assert "/data/store: Permission denied; user 3000 may not use it" in told
    os.chown(tmp_path, *image.user())
    with podman.running("broker", options=options):
        podman.until_healthy("broker")
