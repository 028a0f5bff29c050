"""What a call looks like that is forwarded, and what becomes of its failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.accounts import read_rules
from skylarkmq.broker.access.forwarded import CLIENT, PROOF, is_proved
from skylarkmq.broker.forwarding.forwarder import (
    LIMIT_S,
    MARGIN_S,
    Forwarder,
    NotForwarded,
    is_forwarded,
)
from skylarkmq.broker.forwarding.grpc_client import UpstreamError
from skylarkmq.broker.grpc.calls import OK, Rpc, RpcRefused
from skylarkmq.broker.grpc.other_brokers import OtherBroker
from skylarkmq.protocol.bodies.route import QueueData
from skylarkmq.protocol.http2.grpc import GrpcStatus
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.access.test_control import ACCOUNTS
from tests.broker.grpc.session_rig import a_call
from tests.support.manual_clock import ManualClock, settle

QUEUES = QueueData(broker_name="broker-b", perm=6, read_queue_nums=1, write_queue_nums=1)
OTHER = OtherBroker(QUEUES, "balancer:8081", "192.0.2.9:8081")
OWN = "192.0.2.1:8081"
SAID = {
    "x-mq-client-id": "c@1",
    "x-mq-language": "JAVA",
    "x-mq-date-time": "20200101T000000Z",
    "x-mq-namespace": "",
    "authorization": "MQv2-HMAC-SHA1 ...",
}
OF_THIS_HOP = {
    ":path": "/x",
    "te": "trailers",
    "content-type": "application/grpc",
    "grpc-timeout": "3S",
    "user-agent": "grpc-java",
    PROOF: "somebody's",
}
BEAT = Rpc("Heartbeat", schema_pb2.HeartbeatRequest, schema_pb2.HeartbeatResponse, asyncio.sleep)


class Endpoints:
    """Other endpoints; the test says what they answer.

    Attributes:
        made: address, path, metadata, request and time of each call.
        answers: an error is raised.
    """

    def __init__(self, *answers: bytes | Exception) -> None:
        self.made: list[tuple[str, str, Mapping[str, str], bytes, float | None]] = []
        self.answers = [*answers]
        self.left: list[str] = []

    async def unary(
        self,
        address: str,
        path: str,
        metadata: Mapping[str, str],
        request: bytes,
        timeout_s: float | None,
    ) -> bytes:
        self.made.append((address, path, metadata, request, timeout_s))
        return self._next()

    @asynccontextmanager
    async def stream(
        self, address: str, path: str, metadata: Mapping[str, str], timeout_s: float | None = None
    ) -> AsyncGenerator[Any]:
        self.made.append((address, path, metadata, b"", timeout_s))

        async def read() -> bytes | None:
            return self._next() if self.answers else None

        try:
            yield SimpleNamespace(read=read)
        finally:
            self.left.append(address)

    def _next(self) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def make_forwarder(endpoints: Endpoints, accounts: str | None = None) -> Forwarder:
    access = None
    if accounts is not None:
        access = SimpleNamespace(rules=read_rules([(Path("a.yml"), accounts.encode())]))
    return Forwarder(cast(Any, endpoints), ManualClock(), OWN, cast(Any, access))


async def beat(forwarder: Forwarder, **call: Any) -> Any:
    request = schema_pb2.HeartbeatRequest(client_type=schema_pb2.PRODUCER)
    return await forwarder.unary(BEAT, OTHER, a_call(metadata=SAID | OF_THIS_HOP, **call), request)


WELL = schema_pb2.HeartbeatResponse(status=OK).SerializeToString()
REFUSED = schema_pb2.HeartbeatResponse(status={"code": 40015}).SerializeToString()


async def test_a_call_goes_as_it_came() -> None:
    endpoints = Endpoints(WELL, REFUSED)
    forwarder = make_forwarder(endpoints)
    assert (await beat(forwarder)).status == OK
    ((address, path, metadata, request, timeout_s),) = endpoints.made
    assert address == OTHER.address
    assert path == "/apache.rocketmq.v2.MessagingService/Heartbeat"
    assert metadata == {**SAID, CLIENT: "192.0.2.5:4711"}
    assert schema_pb2.HeartbeatRequest.FromString(request).client_type == schema_pb2.PRODUCER
    assert timeout_s == LIMIT_S, "its client does not say how long it waits"
    assert (await beat(forwarder)).status.code == 40015, "a refusal is an answer"
    assert forwarder.answered == {("broker-b", 20000): 1, ("broker-b", 40015): 1}


async def test_the_other_broker_answers_before_the_client_gives_up() -> None:
    endpoints = Endpoints(WELL)
    forwarder = make_forwarder(endpoints)
    now_s = cast(Any, forwarder)._clock.monotonic()
    await beat(forwarder, deadline_s=now_s + 3)
    assert endpoints.made[0][4] == pytest.approx(3 - MARGIN_S)
    with pytest.raises(NotForwarded) as caught:
        await beat(forwarder, deadline_s=now_s + MARGIN_S / 2)
    assert caught.value.code == Code.PROXY_TIMEOUT and not caught.value.reached
    assert len(endpoints.made) == 1


def test_a_client_s_address_is_proved_by_an_admin() -> None:
    forwarder = make_forwarder(Endpoints(), ACCOUNTS)
    metadata = forwarder.metadata(a_call(metadata=SAID | OF_THIS_HOP))
    rules = cast(Any, forwarder)._rules
    assert is_proved(rules, metadata[CLIENT], metadata)
    assert metadata[PROOF].startswith("administrator ")
    assert not is_proved(rules, "192.0.2.6:4711", metadata)
    later = ACCOUNTS.replace("administrator", "another-admin")
    cast(Any, forwarder)._access.rules = read_rules([(Path("a.yml"), later.encode())])
    assert forwarder.metadata(a_call())[PROOF].startswith("another-admin ")
    without = make_forwarder(Endpoints(), ACCOUNTS.replace("admin: true", "admin: false"))
    assert PROOF not in without.metadata(a_call(metadata=OF_THIS_HOP))


def test_what_was_forwarded_is_told_by_its_metadata() -> None:
    forwarder = make_forwarder(Endpoints())
    assert not is_forwarded(a_call(metadata=SAID))
    assert is_forwarded(a_call(metadata=forwarder.metadata(a_call())))


@pytest.mark.parametrize("reached", [True, False])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (GrpcStatus.DEADLINE_EXCEEDED, Code.PROXY_TIMEOUT),
        (GrpcStatus.RESOURCE_EXHAUSTED, Code.TOO_MANY_REQUESTS),
        (GrpcStatus.UNIMPLEMENTED, Code.NOT_IMPLEMENTED),
        (GrpcStatus.UNAVAILABLE, Code.INTERNAL_SERVER_ERROR),
        (GrpcStatus.INVALID_ARGUMENT, Code.INTERNAL_SERVER_ERROR),
    ],
)
async def test_what_fails_on_the_way_is_a_status(
    status: GrpcStatus, code: Code, reached: bool
) -> None:
    error = UpstreamError(status, "nobody listens", reached=reached)
    forwarder = make_forwarder(Endpoints(error, error))
    with pytest.raises(
        NotForwarded, match=r"broker-b at 192.0.2.9:8081 .*nobody listens"
    ) as caught:
        await beat(forwarder)
    assert (caught.value.code, caught.value.reached) == (code, reached)
    with pytest.raises(NotForwarded) as caught:
        async with forwarder.stream(BEAT, OTHER, a_call()) as stream:
            await stream.read()
    assert (caught.value.code, caught.value.reached) == (code, reached)
    assert forwarder.answered == {("broker-b", code): 2}


async def test_an_answer_that_is_none() -> None:
    forwarder = make_forwarder(Endpoints(b"\xff\xff"))
    with pytest.raises(NotForwarded) as caught:
        await beat(forwarder)
    assert caught.value.code == Code.INTERNAL_SERVER_ERROR and caught.value.reached


async def test_a_stream_is_left_with_its_user() -> None:
    endpoints = Endpoints(WELL)
    forwarder = make_forwarder(endpoints)
    with pytest.raises(asyncio.CancelledError):
        async with forwarder.stream(BEAT, OTHER, a_call(), has_limit=False) as stream:
            assert await stream.read() == WELL
            assert await stream.read() is None
            raise asyncio.CancelledError
    assert endpoints.left == [OTHER.address]
    assert endpoints.made[0][4] is None
    assert not forwarder.answered, "who reads the answer counts it"


async def test_polls_end_with_the_endpoint() -> None:
    forwarder, stream = make_forwarder(Endpoints()), SimpleNamespace(read=asyncio.Event().wait)

    async def poll() -> None:
        await forwarder.polled(cast(Any, stream))

    ended, cancelled, both = [asyncio.ensure_future(poll()) for _ in range(3)]
    await settle(3)
    cancelled.cancel()
    await settle(3)
    both.cancel()
    forwarder.end_polls()
    results = await asyncio.gather(ended, cancelled, both, return_exceptions=True)
    assert isinstance(results[0], RpcRefused) and results[0].code == Code.MESSAGE_NOT_FOUND
    assert all(isinstance(each, asyncio.CancelledError) for each in results[1:])
    answered = asyncio.get_running_loop().create_future()
    answered.set_result(WELL)
    assert await forwarder.polled(cast(Any, SimpleNamespace(read=lambda: answered))) == WELL
    assert not cast(Any, forwarder)._polls


async def test_nothing_is_forwarded_to_this_endpoint_itself() -> None:
    endpoints = Endpoints(WELL)
    forwarder = make_forwarder(endpoints)
    own = OTHER._replace(address=OWN)
    with pytest.raises(NotForwarded, match="about to lead") as caught:
        await forwarder.unary(BEAT, own, a_call(), schema_pb2.HeartbeatRequest())
    assert not caught.value.reached
    with pytest.raises(NotForwarded, match="about to lead"):
        async with forwarder.stream(BEAT, own, a_call()):
            pass
    assert not endpoints.made
