"""Body of the answer to who is in a group (38).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../header/GetConsumerListByGroupResponseBody.java
"""

import msgspec


class GetConsumerListByGroupResponseBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The client ids of the group, each once."""

    consumer_id_list: list[str] = []
