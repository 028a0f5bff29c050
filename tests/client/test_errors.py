"""Errors: the tree, the mapping from codes, hints and retryability."""

from __future__ import annotations

import pytest

from skylarkmq.client import (
    AuthError,
    BrokerError,
    ConnectionFailed,
    ConsumerClosed,
    IllegalState,
    MessageIllegal,
    NoPermission,
    RequestTimeout,
    RocketMQError,
    ServiceNotAvailable,
    SubscriptionNotExist,
    SystemBusy,
    TopicNotExist,
)
from skylarkmq.client.errors import broker_error


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (1, BrokerError, True),
        (2, SystemBusy, True),
        (3, BrokerError, False),
        (13, MessageIllegal, False),
        (14, ServiceNotAvailable, True),
        (16, NoPermission, True),
        (17, TopicNotExist, True),
        (24, SubscriptionNotExist, False),
        (4711, BrokerError, False),
    ],
)
def test_codes_become_classes(code: int, kind: type[BrokerError], retryable: bool) -> None:
    error = broker_error(code, "the remark, verbatim", "10.0.0.1:10911")
    assert type(error) is kind
    assert (error.code, error.remark, error.broker_addr) == (
        code, "the remark, verbatim", "10.0.0.1:10911",
    )  # fmt: skip
    assert error.retryable is retryable
    assert "the remark, verbatim" in str(error)
    assert str(code) in str(error)


def test_access_control_is_told_by_its_remark() -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, x"
    assert isinstance(broker_error(1, remark, "a:1"), AuthError)


def test_a_missing_remark_is_empty() -> None:
    assert broker_error(14, None, "a:1").remark == ""


def test_the_tree() -> None:
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(ConsumerClosed, IllegalState)
    for kind in (BrokerError, ConnectionFailed, RequestTimeout, IllegalState, AuthError):
        assert issubclass(kind, RocketMQError)
    assert ConnectionFailed("a:1", "down").retryable
    assert not IllegalState("no").retryable
