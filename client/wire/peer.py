"""What a connection's other end is: its release, and whether it is a broker of ours.

Both are known once it has answered the first two-way request under `codec="auto"`; else, and
earlier, an empty heartbeat asks. Kept per connection, because the broker behind an address may have
been replaced when it is connected again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from skylarkmq.protocol.codes import MQVersion
from skylarkmq.protocol.remoting_command import RemotingCommand

CODEC_FIELD: Final = "skylarkmq.codec"
CODEC_OFFER: Final = "msgpack.1"


@dataclass(frozen=True, slots=True)
class Peer:
    """One broker or name server."""

    version: int
    """Release ordinal, see protocol/codes.py; ours says that of RocketMQ 4.9.8."""
    ours: bool
    """It echoed the codec offer."""

    @property
    def has_timers(self) -> bool:
        """It delivers at any time; RocketMQ does since 5.0, before it knows levels only."""
        return self.ours or self.version >= MQVersion.V5_0_0

    @property
    def has_big_pulls(self) -> bool:
        """It gives more than 256 KiB at once to those who ask for it; RocketMQ does since 5.0."""
        return self.ours or self.version >= MQVersion.V5_0_0

    @property
    def release(self) -> str:
        """The release in words, for messages to people."""
        if self.ours:
            return "SkylarkMQ"
        known = [version for version in MQVersion if version <= self.version]
        name = max(known).name.removeprefix("V").replace("_", ".") if known else "unknown"
        return f"RocketMQ {name}{'' if self.version in known else ' or later'}"


def peer_of(answer: RemotingCommand) -> Peer:
    """Return what an answer to a request with the codec offer says about its sender."""
    return Peer(answer.version, answer.ext_fields.get(CODEC_FIELD) == CODEC_OFFER)
