"""The body about access control (54), which names no secret.

Unlike RocketMQ up to 4.9.7, which answers with every account's secret; 4.9.8 answers no 54.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../PlainAccessConfig.java, AclConfig.java
"""

from skylarkmq.protocol.bodies.text import Body


class PlainAccessConfig(Body, kw_only=True, frozen=True):
    """An account as its file has it."""

    access_key: str
    admin: bool = False
    default_group_perm: str | None = None
    default_topic_perm: str | None = None
    group_perms: list[str] = []
    topic_perms: list[str] = []
    white_remote_address: str | None = None


class GetBrokerClusterAclConfigResponseBody(Body, kw_only=True, frozen=True):
    """All white lists and accounts."""

    global_white_addrs: list[str] = []
    plain_access_configs: list[PlainAccessConfig] = []
