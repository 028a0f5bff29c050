"""One frame as it lies on the wire, header still encoded; split off so that errors can carry it."""

from typing import NamedTuple


class RawFrame(NamedTuple):
    """A complete frame, its header not yet read.

    `serialize_type` is the type byte as received, which may name no codec we know.
    """

    serialize_type: int
    header: bytes
    body: bytes
