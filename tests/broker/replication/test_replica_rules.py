"""What a replica refuses while it follows, takes over, hands over or has too few others."""

from __future__ import annotations

from skylarkmq.broker.replication.failover.replica_rules import (
    NONE,
    while_following,
    while_taking_over,
    while_too_few,
)
from skylarkmq.broker.replication.ha.slave_rules import REFUSED
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.broker.replication.support import SERVED


def test_what_a_slave_refuses_a_follower_does_too() -> None:
    following = while_following("broker-a", reads=True)
    assert following.keys() >= REFUSED.keys()
    assert following.keys() <= REFUSED.keys() | SERVED


def test_offsets_and_locks_are_the_masters() -> None:
    """A follower's may be old: a group would begin anew, and two members own one queue."""
    following = while_following("broker-a", reads=True)
    for code in (
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
    ):
        assert code in following


def test_a_follower_that_does_not_know_its_log_answers_no_read() -> None:
    reads = (
        while_following("broker-a", reads=False).keys()
        - while_following("broker-a", reads=True).keys()
    )
    assert {RequestCode.PULL_MESSAGE, RequestCode.GET_MAX_OFFSET} <= reads
    assert while_taking_over("broker-a").keys() >= reads


def test_how_it_stands_is_always_told() -> None:
    """An operator asks a replica that refuses everything else, too."""
    tables = (
        while_following("broker-a", reads=False),
        while_taking_over("broker-a"),
        while_too_few(1, 2),
        NONE,
    )
    for table in tables:
        for code in (
            RequestCode.GET_REPLICA_STATUS,
            RequestCode.SWITCH_OVER,
            RequestCode.FORCE_FAILOVER,
            RequestCode.HEART_BEAT,
            RequestCode.GET_BROKER_RUNTIME_INFO,
        ):
            assert code not in table


def test_refusals_let_clients_look_for_the_master() -> None:
    """Code 11 would say that the message is stored."""
    for table in (while_following("broker-a", reads=False), while_too_few(1, 2)):
        codes = {error.response_code for error in table.values()}
        assert codes == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert "minInSyncReplicas=2" in str(while_too_few(1, 2)[RequestCode.SEND_MESSAGE])
    assert RequestCode.PULL_MESSAGE not in while_too_few(1, 2), "reads go on"
