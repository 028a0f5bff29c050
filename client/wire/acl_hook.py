"""Signs requests to brokers, for access control.

Each try is signed anew, over the fields that really go out. Name servers check nothing, so nothing
is signed for them, and no key goes there; neither is the answer to a push signed.

Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../common/AclClientRPCHook.java
"""

from __future__ import annotations

from skylarkmq.client.config import Credentials
from skylarkmq.protocol.codes import MQVersion
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    UNIQUE_KEY_QUERY,
    sign,
)


class Signer:
    """Signs with one account's keys. Loop thread."""

    def __init__(self, credentials: Credentials) -> None:
        self._access_key = credentials.access_key
        self._secret_key = credentials.secret_key.encode()
        self._security_token = credentials.security_token

    def sign(self, command: RemotingCommand) -> None:
        """Add keys and signature to a request; its codec and all its fields stand by now."""
        fields = command.ext_fields
        if command.serialize_type == SerializeType.ROCKETMQ:
            # An empty value is read as none by Java, which would then sign the text "null".
            fields = command.ext_fields = {name: text for name, text in fields.items() if text}
        fields.pop(SIGNATURE, None)
        fields[ACCESS_KEY] = self._access_key
        if self._security_token:
            fields[SECURITY_TOKEN] = self._security_token
        if UNIQUE_KEY_QUERY in fields:
            command.version = int(MQVersion.V4_9_3)  # see protocol/signature.py
        fields[SIGNATURE] = sign(self._secret_key, fields, command.body)

    def __repr__(self) -> str:
        return "Signer(...)"
