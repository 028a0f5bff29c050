"""The version of a table: compared for equality, never for order.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../DataVersion.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaLong


class DataVersion(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How often the table changed, and when it last did, ms. Also the body of 322."""

    counter: JavaLong = 0
    timestamp: JavaLong = 0
