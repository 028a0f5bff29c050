"""Release ordinals that peers write into the `version` header field.

Only the releases at which some behaviour changes are named; any other number is legal on the wire.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../MQVersion.java
"""

from enum import IntEnum
from typing import Final


class MQVersion(IntEnum):
    """Ordinal of a release. Compare with `>=`; unknown numbers stay plain ints."""

    V3_0_6_SNAPSHOT = 26
    V3_0_7_SNAPSHOT = 28
    V3_0_11 = 37
    V3_1_8_SNAPSHOT = 62
    V3_4_9 = 121
    V4_0_0 = 213
    V4_5_0 = 313
    V4_8_0 = 373
    V4_9_0 = 393
    V4_9_1 = 395
    V4_9_2 = 397
    V4_9_3 = 399
    V4_9_4 = 401
    V4_9_7 = 407
    V4_9_8 = 409
    V5_0_0 = 413
    V5_1_0 = 433
    V5_3_3 = 479


# What we claim to be. Java clients disable SQL92 filters when a broker's answer says less than 4.1.
CURRENT: Final = 409
assert int(MQVersion.V4_9_8) == CURRENT
