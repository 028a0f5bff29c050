"""Headers of the name server: registration (103, 104, 322) and routes (105).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/namesrv/ (the class of each
name)
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class GetRouteInfoRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a topic lives; `accept_standard_json_only` asks for quoted numeric keys."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Who registers. Addresses are `ip:port`; id 0 is the master.

    `body_crc32` is CRC-32 of the body as sent, masked with 0x7FFFFFFF; 0 means not checked.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: JavaLong
    compressed: bool = False
    body_crc32: JavaInt = 0


class RegisterBrokerResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Who leaves."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: JavaLong


class QueryDataVersionRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Whose tables are compared; the version itself is the body."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: JavaLong


class QueryDataVersionResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Whether the name server holds another version."""

    changed: bool
