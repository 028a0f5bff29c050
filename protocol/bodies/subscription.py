"""Configurations of consumer groups: bodies of 200 and 201, and `subscriptionGroup.json`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../subscription/SubscriptionGroupConfig.java,
common/.../protocol/body/SubscriptionGroupWrapper.java
"""

import msgspec

from skylarkmq.protocol.bodies.data_version import DataVersion
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class SubscriptionGroupConfig(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One group."""

    broker_id: JavaLong = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: JavaInt = 16
    retry_queue_nums: JavaInt = 1
    which_broker_when_consume_slowly: JavaLong = 1


class SubscriptionGroupWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """All groups of a broker by name."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
