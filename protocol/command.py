"""Whole commands: a frame to a RemotingCommand and back, by the codec that the frame names."""

from collections.abc import Callable
from typing import Final

from skylarkmq.protocol import header_json, header_msgpack, header_rocketmq
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import BadFrameError, RawFrame, SerializeType, encode_frame
from skylarkmq.protocol.remoting_command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand

__all__ = [
    "CODECS",
    "ONEWAY_FLAG",
    "RESPONSE_FLAG",
    "RemotingCommand",
    "decode_command",
    "encode_command",
]

# Unlike RocketMQ, where only the frame is limited: real headers have a few hundred bytes, the
# longest property text takes 200,000, and reading a header keeps the loop from other peers.
HEADER_SIZE_MAX: Final = 1024 * 1024

CODECS: Final = {
    int(SerializeType.JSON): header_json,
    int(SerializeType.ROCKETMQ): header_rocketmq,
    int(SerializeType.MSGPACK): header_msgpack,
}
"""By the serialize type of a frame. Each has the same functions."""
DECODERS: Final[dict[int, Callable[[bytes], RemotingCommand]]] = {
    kind: codec.decode_header for kind, codec in CODECS.items()
}
ENCODERS: Final[dict[int, Callable[[RemotingCommand], bytes]]] = {
    kind: codec.encode_header for kind, codec in CODECS.items()
}
assert set(CODECS) == set(SerializeType)


def decode_command(frame: RawFrame) -> RemotingCommand:
    """Return the command in `frame`, body included.

    Raises:
        BadFrameError: unknown serialize type, a header over HEADER_SIZE_MAX, or one that its
            codec refuses.
    """
    decode = DECODERS.get(frame.serialize_type)
    if decode is None:
        raise BadFrameError("bad_header", f"serialize type {frame.serialize_type:#x}")
    if len(frame.header) > HEADER_SIZE_MAX:
        raise BadFrameError("bad_header", f"over {HEADER_SIZE_MAX} bytes")
    command = decode(frame.header)
    command.body = frame.body
    return command


def encode_command(command: RemotingCommand) -> bytes:
    """Return the whole frame of `command`, by its `serialize_type`.

    Raises:
        LocalProtocolError: what the command holds cannot be carried.
    """
    encode = ENCODERS.get(command.serialize_type)
    if encode is None:
        raise LocalProtocolError(f"no codec for serialize type {command.serialize_type:#x}")
    return encode_frame(command.serialize_type, encode(command), command.body)
