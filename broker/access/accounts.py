"""Accounts and white lists, as the YAML files of RocketMQ's access control have them.

    globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]     who is let in without an account
    accounts:
    - accessKey: RocketMQ                   7 characters or more, as the secret
      secretKey: 12345678
      whiteRemoteAddress: 192.168.1.*       from there the account needs no signature
      admin: false
      defaultTopicPerm: DENY                of topics that topicPerms does not name
      defaultGroupPerm: SUB
      topicPerms: [topicA=DENY, topicB=PUB|SUB]
      groupPerms: [groupC=SUB]              of consumer groups
    dataVersion: [{counter: 1, timestamp: 1700000000000}]      of changes by mqadmin

What several files say counts together. Everything here is immutable: a change makes new rules.

An admin whose account has neither topicPerms nor groupPerms may use every topic and group; one with
them is held to them and to the defaults, as in RocketMQ.

Unlike RocketMQ: a key that is not known, a right that is none and an access key in two places are
errors, where 4.9.8 goes on with DENY or with the first of both. Topics in which the broker parks
messages of other topics (delayed ones, half messages) have no default right. Dead letters need the
group's right beside the topic's default one.

Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../plain/PlainPermissionManager.java,
PlainAccessResource.java, acl/.../common/Permission.java
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.broker.access.yaml_text import Value, YamlError, read_yaml
from skylarkmq.broker.base.addresses import AddressError, AddressList
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.bodies.text import DataVersion
from skylarkmq.protocol.flags import (
    DLQ_GROUP_TOPIC_PREFIX,
    NOT_ALLOWED_SEND_TOPICS,
    RETRY_GROUP_TOPIC_PREFIX,
)

if TYPE_CHECKING:
    import difflib
else:  # for a member that nobody knows
    difflib = on_first_use("difflib")

KEY_SIZE_MIN: Final = 7
"""Characters of an access key and of a secret."""
KEY_SIZE_MAX: Final = 1024
ACCOUNTS_MAX: Final = 10_000
DENY: Final = 0
PUB: Final = 4
SUB: Final = 8
_RIGHTS: Final = {
    "DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB,
}  # fmt: skip
_NOT_NAMED: Final = ""
"""What has the default right."""
_TRUE: Final = frozenset({"true", "yes", "on"})
_FALSE: Final = frozenset({"false", "no", "off"})
WHITE_KEY: Final = "globalWhiteRemoteAddresses"
ACCOUNTS_KEY: Final = "accounts"
VERSION_KEY: Final = "dataVersion"
_FILE_KEYS: Final = (WHITE_KEY, ACCOUNTS_KEY, VERSION_KEY)
ACCOUNT_KEYS: Final = (
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm",
    "defaultGroupPerm", "topicPerms", "groupPerms",
)  # fmt: skip


class Kind(StrEnum):
    """What a right is for."""

    TOPIC = "topic"
    GROUP = "group"


class AccessFileError(ValueError):
    """A file of access control that cannot be used; names file, account and cure, no secret."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account and its rights; the secret is in no text that is made of it."""

    access_key: str
    secret_key: bytes = field(repr=False)
    file: Path
    white: AddressList = field(repr=False, compare=False)  # of white_text
    white_text: str = ""
    is_admin: bool = False
    topic_default: int = DENY
    group_default: int = DENY
    topics: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)
    groups: Mapping[str, int] = field(default_factory=dict[str, int], repr=False)

    def allows(self, kind: Kind, name: str, right: int) -> bool:
        """Return whether the account has a right; `name` as `need_of` makes it."""
        if self.is_admin and not self.topics and not self.groups:
            return True
        if kind is Kind.GROUP:
            return self.groups.get(name, self.group_default) & right == right
        known = self.topics.get(name)
        if known is not None:
            return known & right == right
        if name in NOT_ALLOWED_SEND_TOPICS:
            return False
        if name.startswith(DLQ_GROUP_TOPIC_PREFIX) and not self.allows(
            Kind.GROUP, name.removeprefix(DLQ_GROUP_TOPIC_PREFIX), SUB
        ):
            return False
        return self.topic_default & right == right

    def may_all_of(self, before: Account) -> bool:
        """Return whether who could use the account before still may, and for no less."""
        if self == before:
            return True
        if self.secret_key != before.secret_key or (before.is_admin and not self.is_admin):
            return False
        if before.white and self.white_text != before.white_text:
            return False
        names = {
            Kind.TOPIC: {*before.topics, *self.topics, *NOT_ALLOWED_SEND_TOPICS, _NOT_NAMED},
            Kind.GROUP: {*before.groups, *self.groups, _NOT_NAMED},
        }
        return all(
            self.allows(kind, name, right)
            for kind in Kind
            for name in names[kind]
            for right in (PUB, SUB)
            if before.allows(kind, name, right)
        )

    @property
    def reads_all(self) -> bool:
        """The account may see what is of the whole cluster: SUB is its default for everything."""
        return self.is_admin or bool(self.topic_default & self.group_default & SUB)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """All accounts and white lists that count."""

    white: AddressList
    white_texts: tuple[str, ...]
    accounts: Mapping[str, Account]  # by access key
    versions: Mapping[Path, DataVersion]  # of the files

    def admin(self) -> Account | None:
        """Return an account that may administer, the first one by its access key."""
        admins = (key for key, account in self.accounts.items() if account.is_admin)
        key = min(admins, default=None)
        return None if key is None else self.accounts[key]


DENY_ALL: Final = AccessRules(AddressList(), (), {}, {})
"""Rules without an account or a white list: they let nobody in."""


def need_of(kind: Kind, name: str, right: int) -> tuple[Kind, str, int]:
    """Return what is to be asked for: a retry topic stands for its group, to be read."""
    if kind is Kind.TOPIC and name.startswith(RETRY_GROUP_TOPIC_PREFIX):
        return Kind.GROUP, name.removeprefix(RETRY_GROUP_TOPIC_PREFIX).partition("+")[0], SUB
    return kind, name, right


def read_rules(texts: Iterable[tuple[Path, bytes]]) -> AccessRules:
    """Return what files of access control say together.

    Raises:
        AccessFileError: for the first thing that is wrong in one of them.
    """
    white: list[str] = []
    accounts: dict[str, Account] = {}
    versions: dict[Path, DataVersion] = {}
    for path, data in texts:
        content = read_content(path, data)
        patterns = content_list(path, content, WHITE_KEY)
        _addresses(path, WHITE_KEY, patterns)
        white += patterns
        for number, entry in enumerate(content.get(ACCOUNTS_KEY) or ()):
            account = read_account(path, entry, f"account {number + 1}")
            other = accounts.get(account.access_key)
            if other is not None:
                raise AccessFileError(
                    f"{path}: account {account.access_key!r} stands in {other.file} already; keep "
                    "it in one place"
                )
            accounts[account.access_key] = account
            if len(accounts) > ACCOUNTS_MAX:
                raise AccessFileError(f"{path}: there are more than {ACCOUNTS_MAX} accounts")
        versions[path] = read_version(path, content)
    addresses = _addresses(Path("all files"), WHITE_KEY, white)
    known, seen = MappingProxyType(accounts), MappingProxyType(versions)
    return AccessRules(addresses, tuple(white), known, seen)


def read_content(path: Path, data: bytes) -> dict[str, Any]:
    """Return a file's members as they stand there; an empty file has none.

    Raises:
        AccessFileError: no YAML, or of another shape.
    """
    try:
        content: Value = read_yaml(data)
    except YamlError as error:
        raise AccessFileError(f"{path}: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise AccessFileError(f"{path}: write members such as `{ACCOUNTS_KEY}:` in it")
    _check_keys(path, "the file", content, _FILE_KEYS)
    entries = content.get(ACCOUNTS_KEY)
    if entries is not None and not isinstance(entries, list):
        raise AccessFileError(f"{path}: {ACCOUNTS_KEY} is a list, each account with `- ` before it")
    return content


def content_list(path: Path, content: Mapping[str, Any], key: str, owner: str = "") -> list[str]:
    """Return a member that is a list of texts; one that is left out is empty.

    Raises:
        AccessFileError: it is something else.
    """
    value: Value = content.get(key)
    if value is None:
        return []
    texts: list[str] = []
    for text in value if isinstance(value, list) else [None]:
        if not isinstance(text, str):
            what = f"{path}: {owner}{key}"
            raise AccessFileError(f"{what} is a list of texts, each with `- ` before it")
        texts.append(text)
    return texts


def read_version(path: Path, content: Mapping[str, Any]) -> DataVersion:
    """Return how often mqadmin changed a file, and when last.

    Raises:
        AccessFileError: it is no version.
    """
    entries = content.get(VERSION_KEY)
    if not entries:
        return DataVersion()
    try:
        first = entries[0]
        return DataVersion(counter=int(first["counter"]), timestamp=int(first["timestamp"]))
    except (TypeError, KeyError, ValueError, IndexError):
        raise AccessFileError(
            f"{path}: {VERSION_KEY} is a list of one counter and timestamp; remove it"
        ) from None


def read_account(path: Path, entry: Value, place: str) -> Account:
    """Return the account of one entry.

    Args:
        place: where it stands, for an account without a key.

    Raises:
        AccessFileError: something in it is wrong.
    """
    if not isinstance(entry, dict):
        raise AccessFileError(f"{path}: {place} is no map; write `- accessKey: ...`")
    access_key = entry.get("accessKey")
    if not isinstance(access_key, str) or not KEY_SIZE_MIN <= len(access_key) <= KEY_SIZE_MAX:
        raise AccessFileError(f"{path}: {place}: accessKey is a text of 7 characters or more")
    owner = f"account {access_key!r}"
    _check_keys(path, owner, entry, ACCOUNT_KEYS)
    secret = entry.get("secretKey")
    if not isinstance(secret, str) or not KEY_SIZE_MIN <= len(secret) <= KEY_SIZE_MAX:
        raise AccessFileError(f"{path}: {owner}: secretKey is a text of 7 characters or more")
    white = entry.get("whiteRemoteAddress") or ""
    if not isinstance(white, str):
        raise AccessFileError(f"{path}: {owner}: whiteRemoteAddress is one text")
    return Account(
        access_key,
        secret.encode(),
        path,
        _addresses(path, f"{owner}: whiteRemoteAddress", [white]),
        white,
        _boolean(path, owner, entry),
        _default(path, owner, entry, "defaultTopicPerm"),
        _default(path, owner, entry, "defaultGroupPerm"),
        _rights(path, owner, entry, "topicPerms"),
        _rights(path, owner, entry, "groupPerms"),
    )


def right_of(text: str) -> int | None:
    """Return the right that a text names, None for none."""
    return _RIGHTS.get(text.strip())


def right_names(right: int) -> str:
    """Return the text of a right."""
    return next(text for text, value in _RIGHTS.items() if value == right)


def _addresses(path: Path, what: str, patterns: list[str]) -> AddressList:
    try:
        return AddressList(patterns)
    except AddressError as error:
        raise AccessFileError(f"{path}: {what}: {error}") from None


def _boolean(path: Path, owner: str, entry: Mapping[str, Any]) -> bool:
    text = entry.get("admin")
    if text is None or (isinstance(text, str) and text.lower() in _FALSE):
        return False
    if isinstance(text, str) and text.lower() in _TRUE:
        return True
    raise AccessFileError(f"{path}: {owner}: admin is true or false")


def _default(path: Path, owner: str, entry: Mapping[str, Any], key: str) -> int:
    text = entry.get(key)
    if text is None:
        return DENY
    right = right_of(text) if isinstance(text, str) else None
    if right is None:
        raise AccessFileError(f"{path}: {owner}: {key} is DENY, PUB, SUB or PUB|SUB")
    return right


def _rights(path: Path, owner: str, entry: Mapping[str, Any], key: str) -> Mapping[str, int]:
    rights: dict[str, int] = {}
    for text in content_list(path, entry, key, f"{owner}: "):
        name, mark, word = (part.strip() for part in text.partition("="))
        right = right_of(word)
        if not mark or not name or right is None:
            raise AccessFileError(
                f"{path}: {owner}: {key} has {text[:200]!r}; write name=DENY, name=PUB, name=SUB "
                "or name=PUB|SUB"
            )
        if rights.setdefault(name, right) != right:
            raise AccessFileError(f"{path}: {owner}: {key} has {name!r} with two rights; keep one")
    return MappingProxyType(rights)


def _check_keys(path: Path, owner: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in entry:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            cure = f"did you mean {near[0]}?" if near else f"it may have {', '.join(known)}"
            raise AccessFileError(f"{path}: {owner} has a member {key[:100]!r}: {cure}")


def versions_text(versions: Mapping[Path, DataVersion]) -> str:
    """Return the versions of all files as a JSON text, in the form that mqadmin reads."""
    return json.dumps(
        {
            str(path): {"counter": version.counter, "timestamp": version.timestamp}
            for path, version in versions.items()
        }
    )
