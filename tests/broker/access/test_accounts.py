"""The files of accounts: what they mean, and errors that name file, account and cure, no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.broker.access.accounts import (
    PUB,
    SUB,
    AccessFileError,
    AccessRules,
    Kind,
    read_rules,
    right_names,
    right_of,
)
from skylarkmq.broker.access.yaml_text import SIZE_MAX, VALUES_MAX, YamlError, read_yaml, write_yaml
from skylarkmq.protocol.bodies.text import DataVersion

FILE = Path("/etc/conf/plain_acl.yml")
TOPIC, GROUP = Kind.TOPIC, Kind.GROUP
SHIPPED = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def rules_of(text: str) -> AccessRules:
    return read_rules([(FILE, text.encode())])


def account(members: str) -> str:
    return f"accounts:\n- accessKey: somebody\n  secretKey: hidden-secret\n  {members}\n"


def test_the_file_that_apache_ships() -> None:
    rules = rules_of(SHIPPED)
    assert rules.white.matches("10.10.103.200") and not rules.white.matches("10.10.104.200")
    first, second = rules.accounts["RocketMQ"], rules.accounts["rocketmq2"]
    assert first.secret_key == b"12345678"
    assert not first.white and second.white.matches("192.168.1.9")
    assert [first.allows(TOPIC, f"topic{x}", PUB) for x in "ABCD"] == [False, True, False, False]
    assert [first.allows(TOPIC, f"topic{x}", SUB) for x in "ABCD"] == [False, True, True, False]
    assert [first.allows(GROUP, f"group{x}", SUB) for x in "ABCD"] == [False, True, True, True]
    assert not first.reads_all and second.reads_all
    assert rules.admin() is second
    assert second.allows(TOPIC, "whatever", PUB) and second.allows(GROUP, "whatever", SUB)


def test_a_number_keeps_its_digits_and_texts_their_form() -> None:
    text = "accounts:\n- accessKey: 00123456\n  secretKey: 1e10_000\n  admin: Yes\n"
    (found,) = rules_of(text).accounts.values()
    assert (found.access_key, found.secret_key, found.is_admin) == ("00123456", b"1e10_000", True)


def test_several_files_count_together() -> None:
    other = FILE.with_name("more.yml")
    more = b"""
globalWhiteRemoteAddresses: [1.2.3.4]
accounts:
- {accessKey: another, secretKey: another-secret}
dataVersion:
- counter: 7
  timestamp: 1700000000000
"""
    rules = read_rules([(FILE, SHIPPED.encode()), (other, more)])
    assert set(rules.accounts) == {"RocketMQ", "rocketmq2", "another"}
    assert rules.white.matches("1.2.3.4") and rules.white.matches("192.168.0.1")
    assert rules.versions == {
        FILE: DataVersion(), other: DataVersion(counter=7, timestamp=1_700_000_000_000)
    }  # fmt: skip


def test_an_admin_with_a_list_is_held_to_it() -> None:
    (found,) = rules_of(account("admin: true\n  topicPerms: [mine=PUB]")).accounts.values()
    assert found.allows(TOPIC, "mine", PUB) and not found.allows(TOPIC, "other", PUB)


def test_parked_messages_and_dead_letters_have_no_right_by_default_alone() -> None:
    text = account("defaultTopicPerm: SUB\n  groupPerms: [mine=SUB]")
    (found,) = rules_of(text).accounts.values()
    assert found.allows(TOPIC, "orders", SUB)
    assert not found.allows(TOPIC, "SCHEDULE_TOPIC_XXXX", SUB)
    assert not found.allows(TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", SUB)
    assert found.allows(TOPIC, "%DLQ%mine", SUB) and not found.allows(TOPIC, "%DLQ%other", SUB)
    text = account("topicPerms: ['%DLQ%other=SUB', SCHEDULE_TOPIC_XXXX=SUB]")
    (found,) = rules_of(text).accounts.values()
    assert found.allows(TOPIC, "%DLQ%other", SUB)
    assert found.allows(TOPIC, "SCHEDULE_TOPIC_XXXX", SUB)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: {}", ["accounts is a list"]),
        ("- accounts", ["members such as"]),
        ("acounts: []", ["did you mean accounts?"]),
        ("accounts: [x]", ["account 1 is no map"]),
        ("accounts:\n- secretKey: hidden-secret", ["account 1", "7 characters"]),
        ("accounts:\n- accessKey: short", ["account 1", "7 characters"]),
        ("accounts:\n- accessKey: somebody", ["'somebody'", "secretKey", "7 characters"]),
        ("accounts:\n- {accessKey: somebody, secretKey: hidden}", ["secretKey", "7 characters"]),
        (account("defaultTopicPrem: PUB"), ["'somebody'", "did you mean defaultTopicPerm?"]),
        (account("defaultTopicPerm: WRITE"), ["DENY, PUB, SUB or PUB|SUB"]),
        (account("topicPerms: orders=PUB"), ["topicPerms is a list"]),
        (account("topicPerms: [orders]"), ["'orders'", "write name=DENY"]),
        (account("topicPerms: [=PUB]"), ["write name=DENY"]),
        (account("topicPerms: [a=PUB, a=SUB]"), ["two rights"]),
        (account("admin: maybe"), ["admin is true or false"]),
        (account("whiteRemoteAddress: 10.0.0.0/8"), ["whiteRemoteAddress", "cannot be read"]),
        (account("whiteRemoteAddress: [1.2.3.4]"), ["whiteRemoteAddress is one text"]),
        ("globalWhiteRemoteAddresses: [1.2.3]", ["globalWhiteRemoteAddresses", "3 parts"]),
        ("globalWhiteRemoteAddresses: '*'", ["is a list of texts"]),
        (account("admin: true\n  admin: false"), ["line 5", "twice"]),
        (account("admin: &x true"), ["line 4", "references (&)"]),
        ("a: &x [1]\nb: *x", ["line 1", "references (&)"]),
        (account("admin: !!python/object/apply:os.system ['x']"), ["line 4", "a tag"]),
        (account("admin: true\n---\naccounts: []"), ["second document"]),
        (f"accounts: {'[' * 100}", ["nested deeper"]),
        (f"accounts: {'[' * 2000}", ["line 1"]),  # newer parsers refuse it before we can
        ("accounts: [\n hidden-secret", ["it is no YAML"]),
        ("? [a]\n: b", ["a key is a name"]),
        (account("") + account("").split("\n", 1)[1], ["stands in", "already"]),
        ("dataVersion: [7]", ["dataVersion"]),
        (f"a: [{'x,' * VALUES_MAX}]", ["line 1", f"more than {VALUES_MAX} values"]),
    ],
)
def test_errors_name_file_place_and_cure(text: str, words: list[str]) -> None:
    with pytest.raises(AccessFileError) as caught:
        rules_of(text)
    told = str(caught.value)
    assert told.startswith(f"{FILE}: ")
    assert [word for word in words if word not in told] == []
    assert "hidden" not in told
    assert "hidden" not in repr(caught.value.__context__)


def test_no_text_of_an_account_has_its_secret() -> None:
    rules = rules_of(account("admin: true"))
    assert "hidden" not in repr(rules) and "hidden" not in str(rules.accounts["somebody"])


def test_a_file_has_a_size() -> None:
    with pytest.raises(AccessFileError, match="bytes"):
        rules_of("#" * (SIZE_MAX + 1))


NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=20)
VALUES: Any = st.recursive(
    st.none() | NAMES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner,
    max_size=3), max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    try:
        again = read_yaml(write_yaml(value))
    except YamlError as error:
        assert "nested" in str(error)  # deeper than these files are
    else:
        assert again == value


@given(st.binary(max_size=300) | st.text(alphabet="accounts:- \n[]{}&*!?|>'\"#,=x", max_size=200)
       .map(str.encode))  # fmt: skip
def test_no_bytes_fail_otherwise(data: bytes) -> None:
    try:
        read_rules([(FILE, data)])
    except AccessFileError as error:
        assert str(error).startswith(f"{FILE}: ")


def test_rights_have_names() -> None:
    assert all(right_of(right_names(right)) == right for right in (0, PUB, SUB, PUB | SUB))
