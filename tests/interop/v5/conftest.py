"""Brokers with an endpoint of the gRPC protocol, and one program of each language, which several
tests share. INTEROP_BROKER is "skylarkmq" (default) or "apache53".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import java
from tests.interop.children import Children
from tests.interop.servers import Broker
from tests.interop.v5.brokers import ApacheProxy, SkylarkGrpcBroker
from tests.interop.v5.programs import LANGUAGES, Place, Program

SERVERS: dict[str, type[ApacheProxy] | type[SkylarkGrpcBroker]] = {
    server.kind: server for server in (SkylarkGrpcBroker, ApacheProxy)
}
KIND = os.environ.get("INTEROP_BROKER", SkylarkGrpcBroker.kind)

Grpc = ApacheProxy | SkylarkGrpcBroker
Start = Callable[[type[Broker]], Broker]
Connect = Callable[[Place], Program]


def _server() -> type[ApacheProxy] | type[SkylarkGrpcBroker]:
    if KIND not in SERVERS:
        pytest.skip(f"{KIND} has no endpoint of the gRPC protocol")
    if ApacheProxy.kind == KIND and (why := java.missing()):
        pytest.skip(why)
    return SERVERS[KIND]


@pytest.fixture(scope="session")
def broker(start_broker: Start) -> Broker:
    """The broker under test, shared: each test has topics and groups of its own."""
    return start_broker(_server())


@pytest.fixture
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A broker that the test starts, and may start again; a parameter is a table of its keys."""
    server = _server()
    folder = tmp_path / server.kind
    folder.mkdir()
    broker = server(Children(folder), folder, **getattr(request, "param", {}))
    try:
        yield broker
    finally:
        broker.end()


@pytest.fixture(scope="session")
def endpoint(broker: Grpc) -> str:
    """Where the clients of `program` connect to."""
    return broker.endpoint


@pytest.fixture(scope="session", params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """The language of the clients; all tests of one before those of the next."""
    return str(request.param)


@pytest.fixture
def connect(language: str, children: Children) -> Iterator[Connect]:
    """Starts the program of a language for an endpoint of the test's own."""
    programs: list[Program] = []

    def connects(place: Place) -> Program:
        programs.append(Program(children, language, place))
        return programs[-1]

    yield connects
    for program in programs:
        program.child.kill()


@pytest.fixture(scope="session")
def shared_program(
    language: str, endpoint: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    """The program of a language, connected to the endpoint under test."""
    children = Children(tmp_path_factory.mktemp(language))
    try:
        yield Program(children, language, Place(endpoint))
    finally:
        for child in children.all:
            child.kill()


@pytest.fixture
def program(shared_program: Program) -> Iterator[Program]:
    """The same, with no client of an earlier test."""
    yield shared_program
    shared_program.close_clients()
