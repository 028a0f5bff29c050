"""Request signatures of RocketMQ's access control.

    signed bytes = the values of all ext fields but Signature, in the order of their names,
                   as UTF-8 and with nothing between them, then the body
    signature    = Base64(HMAC-SHA1(secret key, signed bytes))

Names are ordered as Java orders strings: by UTF-16 code units. The fields are those that go on the
wire, the access key and the security token among them, each in its text form whatever the codec.

Brokers up to 4.9.8 leave the field `_UNIQUE_KEY_QUERY` out when they verify, although the Java
client signs it since 4.9.4; newer ones leave it out for requests whose header says release 4.9.3 or
older. So a request that is signed without it, and says 4.9.3, passes at all of them.

Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../common/AclClientRPCHook.java, AclUtils.java,
AclSigner.java, acl/.../plain/PlainAccessResource.java; apache/rocketmq#7085
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hmac import compare_digest, digest
from typing import Final

from skylarkmq.protocol.codes import MQVersion
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.headers.access import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from skylarkmq.protocol.remoting_command import RemotingCommand

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
ORDERS_MAX: Final = 256
REMEMBERED_NAMES_MAX: Final = 32

UNSIGNED: Final = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})
"""Fields that no signature covers."""
_WITH_UNIQUE_KEY_QUERY: Final = frozenset({SIGNATURE})
_orders: dict[tuple[str, ...], list[str]] = {}


def signed_content(
    ext_fields: Mapping[str, str], body: bytes, unsigned: frozenset[str] = UNSIGNED
) -> bytes:
    """Return the bytes that the signature of a request covers: all fields but `unsigned`."""
    given = tuple(ext_fields)
    order = _orders.get(given)
    if order is None:
        order = _order_of(given)
    values = [ext_fields[name] for name in order if name not in unsigned]
    return "".join(values).encode() + body


def sign(secret_key: bytes, ext_fields: Mapping[str, str], body: bytes) -> str:
    """Return the signature of a request with these fields and this body.

    Args:
        secret_key: UTF-8 of the key's text.
    """
    return b64encode(digest(secret_key, signed_content(ext_fields, body), "sha1")).decode()


def sign_request(
    command: RemotingCommand, access_key: str, secret_key: bytes, security_token: str = ""
) -> None:
    """Add key and signature to a request whose codec and fields stand by now."""
    fields = command.ext_fields
    if command.serialize_type == SerializeType.ROCKETMQ:
        # An empty value is read as none by Java, which would then sign the text "null".
        fields = command.ext_fields = {name: text for name, text in fields.items() if text}
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = access_key
    if security_token:
        fields[SECURITY_TOKEN] = security_token
    if UNIQUE_KEY_QUERY in fields:
        command.version = int(MQVersion.V4_9_3)  # see above
    fields[SIGNATURE] = sign(secret_key, fields, command.body)


def is_signed(
    secret_key: bytes, ext_fields: Mapping[str, str], body: bytes, signature: str
) -> bool:
    """Return whether a signature is that of a request, in the same time wherever it is wrong.

    A request with `_UNIQUE_KEY_QUERY` may have it signed or not: clients differ.
    """
    claimed = signature.encode("utf-8", "surrogatepass")
    is_right = _is_digest(secret_key, signed_content(ext_fields, body), claimed)
    if not is_right and UNIQUE_KEY_QUERY in ext_fields:
        content = signed_content(ext_fields, body, _WITH_UNIQUE_KEY_QUERY)
        is_right = _is_digest(secret_key, content, claimed)
    return is_right


def _is_digest(secret_key: bytes, content: bytes, claimed: bytes) -> bool:
    return compare_digest(b64encode(digest(secret_key, content, "sha1")), claimed)


def _order_of(given: tuple[str, ...]) -> list[str]:
    """Return names in their order, and remember it: a client's requests have the same ones."""
    names = sorted(given)
    if not "".join(names).isascii():
        names.sort(key=_utf16)
    if len(given) <= REMEMBERED_NAMES_MAX and len(_orders) < ORDERS_MAX:
        _orders[given] = names
    return names


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
