"""What users make with keywords names the nearest one where a keyword is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

MODULES = (
    "skylarkmq.client",
    "skylarkmq.client.sync",
    "skylarkmq.embedded",
    "skylarkmq.testing",
    "skylarkmq.integrations.faststream",
    "skylarkmq.integrations.faststream.fastapi",
)
NOT_CHECKED = {
    # made for each message: a check would cost as much as the rest
    "Message", "RocketMQResponse",
    # without keywords, or tuples
    "DeduplicationWindow", "MessageQueue", "Sql92", "StartFrom", "Tag", "VirtualClock",
    # what they keep is checked by `publisher` and `subscriber`, or by FastStream
    "RocketMQPublisher", "RocketMQRoute", "TestRocketMQBroker",
    # not made by users
    "Fault", "Faults", "HalfMessage", "MessageScan", "MessageType", "MessageView", "PoppedMessage",
    "ReceivedMessage", "Reply", "RocketMQMessage", "RocketMQPublishCommand", "RunningBroker",
    "SendResult", "SendStats", "SendStatus", "StoredMessage", "SyncBroker", "Transaction",
    "TransactionState",
}  # fmt: skip


def made_by_users() -> Iterator[Callable[..., Any]]:
    for name in MODULES:
        try:
            module = import_module(name)
        except ImportError:  # its extra is not installed
            continue
        for each in getattr(module, "__all__", ("Broker",)):
            kind = getattr(module, each)
            is_ours = getattr(kind, "__module__", "").startswith("skylarkmq.")
            is_error = inspect.isclass(kind) and issubclass(kind, Exception)
            if is_ours and not is_error and each not in NOT_CHECKED:
                yield kind


@pytest.mark.parametrize("kind", [*made_by_users()])
def test_a_wrong_keyword_is_told_with_the_nearest_one(kind: Callable[..., Any]) -> None:
    right = [*inspect.signature(kind).parameters][1]
    wrong = f"{right[:-1]}qx"
    with pytest.raises(TypeError, match=rf"^\w+ has no setting '{wrong}'; {right}\?$"):
        kind(**{wrong: 1})
