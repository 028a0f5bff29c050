"""Names: the same rule for topics and groups, whoever sends them; and RocketMQ's flag bits."""

import pytest

from skylarkmq.protocol import flags
from skylarkmq.protocol.flags import (
    MessageSysFlag,
    PermName,
    validate_group,
    validate_producer_group,
    validate_topic,
)

LEGAL = ["T", "TopicTest", "%2e%2e%2f", "%", "|", "-", "_", "0", "%RETRY%g", "a|b-c_D%9", "x" * 120]
HOSTILE = [
    "",
    " ",
    "\t",
    "\n",
    ".",
    "..",
    "../../etc/passwd",
    "a/b",
    "a\\b",
    "a\x00",
    "\x00",
    "a\n",
    "a\r",
    "a\r\n",
    "a b",
    " a",
    "a ",
    "a\u00a0",
    "\u0430bc",
    "\uff0e\uff0e",
    "a\u202eb",
    "\u0661",
    "\u00df",
    "\u212a",
    "a.b",
    "a:b",
    "a*",
    "a?",
    "a#b",
    "a@b",
    "a$",
    "a^",
    "\ud800",
    "\U0001f600",
    "x" * 128,
    "x" * 100_000,
    "\n" * 500,
]


@pytest.mark.parametrize("name", LEGAL)
def test_legal_names_pass_everywhere(name: str) -> None:
    assert validate_topic(name) is None
    assert validate_group(name) is None
    assert validate_producer_group(name) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused_with_a_short_printable_reason(name: str) -> None:
    reasons = [validate_topic(name), validate_group(name)]
    if len(name) != 128:
        reasons.append(validate_producer_group(name))
    for reason in reasons:
        assert reason is not None
        assert reason.isascii()
        assert reason.isprintable()
        assert len(reason.encode()) <= 1024
        assert "x" * 65 not in reason


def test_a_plus_parts_group_and_topic_of_retries_and_nothing_else() -> None:
    assert validate_topic("%RETRY%g_1+t_2") is None
    for name in ("g+t", "+", "%RETRY%+t", "%RETRY%g+", "%RETRY%g+t+u", "%DLQ%g+t", "x%RETRY%g+t"):
        assert "illegal characters" in (validate_topic(name) or ""), name
    assert validate_group("%RETRY%g+t") is not None


def test_the_reason_names_the_letter_and_what_is_allowed_in_words() -> None:
    assert validate_topic("or.ders/eu") == (
        "the specified topic 'or.ders/eu' contains illegal characters, such as '.': allowed are "
        "the letters a to z and A to Z, digits, hyphen (-), underscore (_), percent (%) and bar (|)"
    )
    assert "such as '\\xfc'" in (validate_group("\xfcber") or "")


def test_every_ascii_character_alone() -> None:
    allowed = {chr(code) for code in range(256) if validate_topic(chr(code)) is None}
    assert "".join(sorted(allowed)) == (
        "%-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz|"
    )
    assert allowed == {chr(code) for code in range(256) if validate_group(chr(code)) is None}


def test_the_longest_names() -> None:
    assert validate_topic("t" * 127) is None
    assert "127" in (validate_topic("t" * 128) or "")
    assert validate_group("g" * 120) is None
    assert "120" in (validate_group("g" * 121) or "")
    assert validate_producer_group("g" * 255) is None
    assert "255" in (validate_producer_group("g" * 256) or "")


def test_the_topics_of_the_longest_group_are_legal() -> None:
    group = "g" * flags.MAX_GROUP_SIZE
    assert validate_topic(flags.retry_topic(group)) is None
    assert validate_topic(flags.dlq_topic(group)) is None


def test_the_topics_of_a_group() -> None:
    assert flags.retry_topic("cg") == "%RETRY%cg"
    assert flags.dlq_topic("cg") == "%DLQ%cg"
    assert flags.is_retry_topic("%RETRY%cg")
    assert not flags.is_retry_topic("%DLQ%cg")


@pytest.mark.parametrize("topic", [*sorted(flags.SYSTEM_TOPICS), "rmq_sys_wheel_timer"])
def test_system_topics(topic: str) -> None:
    assert flags.is_system_topic(topic)
    assert validate_topic(topic) is None


def test_user_topics_are_no_system_topics() -> None:
    for topic in ("TopicTest", "%RETRY%cg", "RMQ_SYS", "tbw102"):
        assert not flags.is_system_topic(topic)


def test_anyone_may_send_to_these_system_topics() -> None:
    open_topics = flags.SYSTEM_TOPICS - flags.NOT_ALLOWED_SEND_TOPICS
    assert open_topics == {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}


@pytest.mark.parametrize(
    ("perm", "allowed"), [(0, ""), (2, "W"), (4, "R"), (6, "RW"), (7, "RWX"), (8, "")]
)
def test_permissions(perm: int, allowed: str) -> None:
    assert flags.is_readable(perm) == ("R" in allowed)
    assert flags.is_writeable(perm) == ("W" in allowed)
    assert flags.is_inherited(perm) == ("X" in allowed)
    assert perm & PermName.PERM_PRIORITY == (8 if perm == 8 else 0)


def test_transaction_types_share_two_bits() -> None:
    for kind in (
        MessageSysFlag.TRANSACTION_NOT_TYPE,
        MessageSysFlag.TRANSACTION_PREPARED_TYPE,
        MessageSysFlag.TRANSACTION_COMMIT_TYPE,
        MessageSysFlag.TRANSACTION_ROLLBACK_TYPE,
    ):
        assert flags.transaction_type(kind | 0x7F3) == kind
