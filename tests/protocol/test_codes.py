"""Codes, languages and versions as the wire knows them."""

import pytest

from skylarkmq.protocol.codes import (
    CURRENT_VERSION,
    SEND_V2_CODES,
    LanguageCode,
    MQVersion,
    RequestCode,
    ResponseCode,
)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SEND_MESSAGE", 10),
        ("PULL_MESSAGE", 11),
        ("HEART_BEAT", 34),
        ("UNREGISTER_CLIENT", 35),
        ("CONSUMER_SEND_MSG_BACK", 36),
        ("LOCK_BATCH_MQ", 41),
        ("REGISTER_BROKER", 103),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("GET_BROKER_CLUSTER_INFO", 106),
        ("GET_ALL_TOPIC_LIST_FROM_NAMESERVER", 206),
        ("SEND_MESSAGE_V2", 310),
        ("SEND_BATCH_MESSAGE", 320),
        ("QUERY_DATA_VERSION", 322),
        ("LITE_PULL_MESSAGE", 361),
        ("POP_MESSAGE", 200050),
        ("GET_REPLICA_STATUS", 30001),
        ("SWITCH_OVER", 30002),
        ("FORCE_FAILOVER", 30003),
        ("DRAIN_BROKER", 30004),
    ],
)
def test_request_codes(name: str, number: int) -> None:
    assert RequestCode[name] == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SUCCESS", 0),
        ("SYSTEM_BUSY", 2),
        ("REQUEST_CODE_NOT_SUPPORTED", 3),
        ("FLUSH_DISK_TIMEOUT", 10),
        ("TOPIC_NOT_EXIST", 17),
        ("PULL_NOT_FOUND", 19),
        ("PULL_OFFSET_MOVED", 21),
        ("SUBSCRIPTION_GROUP_NOT_EXIST", 26),
        ("CONSUMER_NOT_ONLINE", 206),
        ("FLOW_CONTROL", 215),
    ],
)
def test_response_codes(name: str, number: int) -> None:
    assert ResponseCode[name] == number


@pytest.mark.parametrize("table", [RequestCode, ResponseCode, LanguageCode, MQVersion])
def test_no_number_has_two_names(table: type[RequestCode]) -> None:
    assert len(table.__members__) == len(set(table.__members__.values()))


def test_families() -> None:
    assert {310, 320, 325} == SEND_V2_CODES


def test_we_answer_as_a_release_that_may_filter_by_sql() -> None:
    assert CURRENT_VERSION == 409
    assert CURRENT_VERSION >= MQVersion.V4_0_0
    assert int(LanguageCode.PYTHON) == 3
