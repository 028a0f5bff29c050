"""From whom a change of the accounts takes something."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.broker.access.accounts import DENY_ALL, AccessRules, read_rules
from skylarkmq.broker.access.revoking import BY_ADDRESS, Revoked

KEY = "somebody"
PEER = "10.0.0.9:4711"


def rules(*members: str, white: str = "") -> AccessRules:
    """One account, with these members beside its key."""
    text = f"globalWhiteRemoteAddresses: [{white}]\n"
    if members:
        has_secret = any(member.startswith("secretKey") for member in members)
        more = () if has_secret else ("secretKey: the-first-secret",)
        entry = ", ".join((f"accessKey: {KEY}", *more, *members))
        text += f"accounts: [{{{entry}}}]\n"
    return read_rules([(Path("plain_acl.yml"), text.encode())])


TOPICS = "topicPerms: [a=PUB|SUB]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((TOPICS,), ()),
        ((TOPICS,), ("secretKey: another-secret", TOPICS)),
        ((TOPICS,), ("topicPerms: [a=SUB]",)),
        ((TOPICS,), ("topicPerms: [b=PUB|SUB]",)),
        ((TOPICS,), ("admin: false",)),
        (("defaultTopicPerm: SUB",), ("topicPerms: [a=DENY]", "defaultTopicPerm: SUB")),
        (("defaultTopicPerm: SUB",), ("topicPerms: [a=SUB]",)),
        (("groupPerms: [g=SUB]",), (TOPICS,)),
        (("defaultGroupPerm: SUB",), ("groupPerms: [g=SUB]",)),
        (("admin: true",), ("defaultTopicPerm: PUB|SUB", "defaultGroupPerm: PUB|SUB")),
        (
            ("admin: true",),
            ("admin: true", "defaultTopicPerm: PUB|SUB", "defaultGroupPerm: PUB|SUB", TOPICS),
        ),
        (("whiteRemoteAddress: 10.0.0.9", TOPICS), (TOPICS,)),
        (
            ("whiteRemoteAddress: 10.0.0.9", TOPICS),
            ("whiteRemoteAddress: 10.0.0.8", TOPICS),
        ),
    ],
)
def test_an_account_that_may_less(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    revoked = Revoked(rules(*before), rules(*after))
    assert revoked and revoked.keys == {KEY}
    assert revoked.takes_from({"another", KEY}, PEER)
    assert not revoked.takes_from({"another", BY_ADDRESS}, PEER)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), (TOPICS,)),
        ((TOPICS,), (TOPICS,)),
        ((TOPICS,), ("topicPerms: [a=PUB|SUB, b=SUB]", "groupPerms: [g=SUB]")),
        (("topicPerms: [a=SUB]",), ("defaultTopicPerm: PUB|SUB",)),
        (("topicPerms: [a=DENY]",), ("admin: false",)),
        ((TOPICS, "groupPerms: [g=SUB]"), ("admin: true",)),
        ((TOPICS,), ("whiteRemoteAddress: 10.0.0.9", TOPICS)),
    ],
)
def test_an_account_that_may_as_much(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert not Revoked(rules(*before), rules(*after))


def test_an_address_that_the_white_list_lets_in_no_more() -> None:
    revoked = Revoked(rules(white="10.0.0.*, 10.1.0.*"), rules(white="10.0.0.7, 10.1.0.*"))
    assert revoked.takes_from({BY_ADDRESS}, PEER)
    assert not revoked.takes_from({BY_ADDRESS}, "10.0.0.7:1")
    assert not revoked.takes_from({BY_ADDRESS}, "10.1.0.9:1")
    assert not revoked.takes_from({KEY}, PEER), "it has signed"
    assert not Revoked(rules(white="10.0.0.9"), rules(white="10.0.0.9, 10.0.0.1"))
    assert not Revoked(DENY_ALL, rules(white="10.0.0.9")), "at the start"
