"""Status codes, and what remoting codes become."""

import pytest

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.v5.codes import Code, status_code


@pytest.mark.parametrize(
    ("response_code", "code"),
    [
        (ResponseCode.SUCCESS, 20000),
        (ResponseCode.SYSTEM_ERROR, 50001),
        (ResponseCode.SYSTEM_BUSY, 42900),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 50100),
        (ResponseCode.FLUSH_DISK_TIMEOUT, 50401),
        (ResponseCode.SLAVE_NOT_AVAILABLE, 50002),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, 50402),
        (ResponseCode.MESSAGE_ILLEGAL, 40000),
        (ResponseCode.NO_PERMISSION, 40300),
        (ResponseCode.TOPIC_NOT_EXIST, 40402),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, 40403),
        (ResponseCode.FLOW_CONTROL, 42900),
        (-7, 50001),
        (999_999, 50001),
    ],
)
def test_status_of_a_response(response_code: int, code: int) -> None:
    assert status_code(response_code) == code


def test_first_digits_say_the_kind() -> None:
    assert {code // 10000 for code in Code} == {0, 2, 3, 4, 5, 6}
    assert all(status_code(code) is not Code.OK for code in ResponseCode if code)
