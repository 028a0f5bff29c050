"""Heartbeats and their parts, as RocketMQ's clients write them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def subscription(topic: str, expression: str = "*", /, **changes: Any) -> dict[str, Any]:
    """What a member wants of a topic: by tags, where nothing else is said."""
    return {
        "topic": topic, "subString": expression, "subVersion": 1, "tagsSet": [], "codeSet": [],
        "expressionType": "TAG", "classFilterMode": False, **changes,
    }  # fmt: skip


def consumer_data(group: str, /, *subscriptions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A member that pulls and shares the queues with the others of its group."""
    return {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": list(subscriptions), **changes,
    }  # fmt: skip


def heartbeat(client_id: str, *consumers: dict[str, Any], producers: Iterable[str] = ()) -> bytes:
    """The body of a client's heartbeat."""
    body = {
        "clientID": client_id,
        "consumerDataSet": list(consumers),
        "producerDataSet": [{"groupName": group} for group in producers],
    }
    return json.dumps(body).encode()
