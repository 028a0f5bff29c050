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
from hmac import digest
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

UNSIGNED: Final = frozenset({SIGNATURE, UNIQUE_KEY_QUERY})
"""Fields that no signature covers."""


def signed_content(ext_fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes that the signature of a request covers."""
    names = sorted(ext_fields)
    if not "".join(names).isascii():
        names.sort(key=_utf16)
    values = [ext_fields[name] for name in names if name not in UNSIGNED]
    return "".join(values).encode() + body


def sign(secret_key: bytes, ext_fields: Mapping[str, str], body: bytes) -> str:
    """Return the signature of a request with these fields and this body.

    Args:
        secret_key: UTF-8 of the key's text.
    """
    return b64encode(digest(secret_key, signed_content(ext_fields, body), "sha1")).decode()


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
