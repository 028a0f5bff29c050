"""How a handler is found, and what its errors become."""

import logging
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.control import AccessDenied
from skylarkmq.broker.grpc.calls import (
    MESSAGE_MAX,
    Call,
    RpcHandlers,
    RpcRefused,
    failure,
    rpc,
    rpc_table,
    status,
)
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

CALL = Call("a@1", peer="10.0.0.1:5000")


class Hearts(RpcHandlers):
    @rpc("Heartbeat", schema_pb2.HeartbeatRequest, schema_pb2.HeartbeatResponse)
    async def heartbeat(self, call: Call, request: Any) -> schema_pb2.HeartbeatResponse:
        return schema_pb2.HeartbeatResponse(status=status(Code.OK, call.client_id))


async def test_handlers_are_collected() -> None:
    table = rpc_table([Hearts()])
    found = table["Heartbeat"]
    assert found.path == "/apache.rocketmq.v2.MessagingService/Heartbeat"
    answer = await found.handler(CALL, found.request())
    assert answer.status == schema_pb2.Status(code=20000, message="a@1")
    with pytest.raises(ValueError, match="two handlers"):
        rpc_table([Hearts(), Hearts()])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RpcRefused(Code.ILLEGAL_TOPIC, "no name: choose one"), 40002, "no name: choose one"),
        (RemoteProtocolError(ResponseCode.TOPIC_NOT_EXIST, "make it"), 40402, "make it"),
        (AccessDenied("bad_signature", "wrong", "x"), 40100, None),
        (AccessDenied("no_permission", "not this topic", "x"), 40300, None),
        (RpcRefused(Code.BAD_REQUEST, "x" * 5000), 40000, "x" * MESSAGE_MAX),
    ],
)
def test_a_refusal_is_a_status(
    error: Exception, code: int, message: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    found = failure(error, "SendMessage", CALL)
    assert found.code == code
    assert message is None or found.message == message
    assert not caplog.records


def test_our_own_error_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        found = failure(KeyError("secret"), "SendMessage", CALL)
    assert found.code == Code.INTERNAL_SERVER_ERROR
    assert "secret" not in found.message
    (record,) = caplog.records
    assert record.getMessage() == "SendMessage of 'a@1' at 10.0.0.1:5000 failed"
