"""Signs requests to brokers and name servers, for access control.

Each try is signed anew, over the fields that really go out. The access key goes with it, the secret
never. The answer to a push is not signed.

Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../common/AclClientRPCHook.java
"""

from __future__ import annotations

from skylarkmq.client.config import Credentials
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import sign_request


class Signer:
    """Signs with one account's keys. Loop thread."""

    def __init__(self, credentials: Credentials) -> None:
        self._access_key = credentials.access_key
        self._secret_key = credentials.secret_key.encode()
        self._security_token = credentials.security_token

    def sign(self, command: RemotingCommand) -> None:
        """Add keys and signature to a request; its codec and all its fields stand by now."""
        sign_request(command, self._access_key, self._secret_key, self._security_token or "")

    def __repr__(self) -> str:
        return "Signer(...)"
