"""Header of a client's farewell (35). The heartbeat (34) has none.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../header/UnregisterClientRequestHeader.java
"""

import msgspec


class UnregisterClientRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The client leaves one producer group, one consumer group, or both."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None
