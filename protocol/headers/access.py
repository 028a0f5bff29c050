"""Headers of access control: accounts (50, 51), versions (52), white lists (53).

Lists are one text with commas. 54 has no header; its body is in `bodies/access.py`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name)
"""

from typing import Final

from skylarkmq.protocol.headers.fields import Header

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
"""Fields of any request that say whose it is."""


class CreateAccessConfigRequestHeader(Header, kw_only=True, frozen=True):
    """An account to make, or what changes of one; what is left out stays as it is.

    Java always says `admin`, and means false when its user did not.
    """

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        return f"CreateAccessConfigRequestHeader({self.access_key!r}, ...)"


class DeleteAccessConfigRequestHeader(Header, kw_only=True, frozen=True):
    """Which account goes."""

    access_key: str


class UpdateGlobalWhiteAddrsConfigRequestHeader(Header, kw_only=True, frozen=True):
    """The white list of one file; without a path, of the first one."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class GetBrokerAclConfigResponseHeader(Header, kw_only=True, frozen=True):
    """Versions as JSON texts: of the first file, and of each file by its path."""

    version: str
    all_acl_file_version: str
    broker_name: str
    broker_addr: str
    cluster_name: str
