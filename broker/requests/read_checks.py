"""What is checked before a group gets messages of a topic, for all paths that hand them out.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java
"""

from __future__ import annotations

from collections.abc import Mapping

from skylarkmq.broker.net.handlers import refused
from skylarkmq.broker.requests.processor import Context
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.flags import is_readable

_NO_OTHERS: Mapping[str, TopicConfig] = {}


def check_read(
    context: Context,
    group: str,
    topic: str,
    remote_address: str,
    others: Mapping[str, TopicConfig] = _NO_OTHERS,
) -> tuple[SubscriptionGroupConfig, TopicConfig]:
    """Return a group and a topic that it may read; the group is made where groups are.

    Args:
        remote_address: of who asks; empty for the broker itself.
        others: topics that are not in the table.

    Raises:
        RemoteProtocolError: with RocketMQ's code for what is wrong.
    """
    config = context.config
    if not is_readable(config.broker_permission):
        raise refused(
            f"the broker[{config.broker_name}] pulling message is forbidden",
            ResponseCode.NO_PERMISSION,
        )
    found = context.groups.find(group, remote_address)
    if found is None:
        raise refused(
            f"subscription group [{group[:64]}] does not exist; create it, or "
            "let the broker do so with autoCreateSubscriptionGroup=true",
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )
    if not found.consume_enable:
        raise refused(
            f"subscription group no permission, {group}",
            ResponseCode.NO_PERMISSION,
        )
    settings = context.topics.table.get(topic) or others.get(topic)
    if settings is None:
        raise refused(
            f"topic[{topic[:64]}] not exist, apply first please!", ResponseCode.TOPIC_NOT_EXIST
        )
    if not is_readable(settings.perm):
        raise refused(
            f"the topic[{topic}] pulling message is forbidden", ResponseCode.NO_PERMISSION
        )
    return found, settings
