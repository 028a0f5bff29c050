"""Files of access control that are damaged or made to do harm.

What counts then is what they say, or what the last good one said. Real files are changed at random
and read as the broker reads them while it runs. A second reader of YAML, which knows nothing of
ours, says what a file that was taken has in it. `make faults` reads many more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from skylarkmq.broker.access.accounts import (
    PUB,
    SUB,
    AccessFileError,
    AccessRules,
    Account,
    read_rules,
)
from skylarkmq.broker.access.yaml_text import SIZE_MAX
from tests.broker.access.test_accounts import SHIPPED
from tests.broker.access.test_files import Rig
from tests.support.amounts import slow
from tests.support.crash_explorer import seeds

OURS = """\
globalWhiteRemoteAddresses:
- 192.168.7.*
- 10.0.0.{1,2}

accounts:
- accessKey: orders-service
  secretKey: "change this secret"
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB|SUB
  - prices=SUB
  groupPerms:
  - billing=SUB
- accessKey: 'administrator'
  secretKey: change this one, too
  whiteRemoteAddress: 127.0.0.1
  admin: true
"""
WRITTEN = """\
accounts:
- {accessKey: new-account, secretKey: first-secret, admin: false, topicPerms: [T_open=PUB]}
dataVersion:
- counter: 7
  timestamp: 1700000000000
"""
FILES = (SHIPPED, OURS, WRITTEN)
PIECES = (
    b"&a ", b"*a", b"<<: *a", b"!!python/object/apply:os.system [id]", b"!!int ", b"---\n",
    b"...\n", b"%YAML 9.9\n", b"%TAG ! tag:x,2000:\n",
    b"? ", b"|", b">-", b"'", b'"', b"\\x00", b"\t", b"\0",
    b"\xff", b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\r", b"\n", b"#", b"- ", b": ", b"{", b"}", b"[",
    b"]", b",", b"=", b"*", b"admin: true\n", b"  admin: yes\n", b"=PUB|SUB", b"~", b"null", b"-",
    b"0-255", b"{1,2,3}", b"1e9", b"::", b"@", b"`", b"  ", b"accounts:\n",
)  # fmt: skip
LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # that in Python reads less
RIGHTS = {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}


def changed(rng: Random) -> bytes:
    """A real file with something wrong in it, or still sound."""
    data = rng.choice(FILES).encode()
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(data) + 1)
        lines = data.splitlines(keepends=True) or [b"\n"]
        line = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                data = data[:place] + rng.choice(PIECES) + data[place:]
            case 1:
                data = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
            case 2:
                data = data[:place] + data[place + rng.randrange(1, 30) :]
            case 3:
                lines.insert(rng.randrange(len(lines)), lines[line])
                data = b"".join(lines)
            case 4:
                lines.insert(rng.randrange(len(lines)), lines.pop(line))
                data = b"".join(lines)
            case 5:
                lines[line] = b" " * rng.randrange(4) + lines[line].lstrip(b" ")
                data = b"".join(lines)
            case _:
                other = rng.choice(FILES).encode()
                data = data[:place] + other[rng.randrange(len(other)) :]
    return data


def said(data: bytes) -> dict[str, tuple[Any, ...]]:
    """The accounts of a file, as another reader has them."""
    content: Any = yaml.load(data, Loader=LOADER) or {}
    found: dict[str, tuple[Any, ...]] = {}
    for entry in content.get("accounts") or ():
        found[entry["accessKey"]] = (
            entry["secretKey"].encode(),
            entry.get("admin", "").lower() in ("true", "yes", "on"),
            RIGHTS.get(entry.get("defaultTopicPerm", "").strip(), 0),
            RIGHTS.get(entry.get("defaultGroupPerm", "").strip(), 0),
            _rights(entry.get("topicPerms")),
            _rights(entry.get("groupPerms")),
            _text(entry.get("whiteRemoteAddress", "")),
        )
    return found


def _text(text: str) -> str:
    return "" if text in ("~", "null", "Null", "NULL") else text


def _rights(entries: Any) -> dict[str, int]:
    given = [] if isinstance(entries, str) or entries is None else entries
    pairs = [entry.partition("=") for entry in given]
    return {name.strip(): RIGHTS.get(word.strip(), 0) for name, _, word in pairs}


def held(account: Account) -> tuple[Any, ...]:
    return (
        account.secret_key,
        account.is_admin,
        account.topic_default,
        account.group_default,
        dict(account.topics),
        dict(account.groups),
        account.white_text,
    )


def white_of(data: bytes) -> list[str]:
    content: Any = yaml.load(data, Loader=LOADER) or {}
    given = content.get("globalWhiteRemoteAddresses")
    return [] if isinstance(given, str) or given is None else given


def read_again(rig: Rig, data: bytes) -> str:
    """Put a file there, have it looked at, and check what counts then."""
    before, failures = rig.files.rules, rig.files.failure_count
    was = rig.main.read_bytes()
    rig.main.write_bytes(data)
    rig.look()
    rules: AccessRules = rig.files.rules
    assert rig.control.rules is rules
    if rules is before:
        assert rig.files.failure_count == failures + 1 or data == was
        return "refused"
    assert {key: held(account) for key, account in rules.accounts.items()} == said(data)
    assert list(rules.white_texts) == white_of(data)
    return "taken"


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.fault)])
def test_a_changed_file_says_what_it_says_or_nothing(tmp_path: Path, count: int) -> None:
    rig = Rig(tmp_path)
    rig.start()
    seen: Counter[str] = Counter()
    for seed in seeds(count):
        try:
            seen[read_again(rig, changed(Random(seed)))] += 1
        except Exception as error:
            raise AssertionError(f"replay with SKYLARKMQ_SEED={seed}") from error
    assert len(seeds(count)) == 1 or min(seen["taken"], seen["refused"]) > count // 10, seen
    rig.main.write_text(OURS)
    rig.look()
    assert rig.keys == {"orders-service", "administrator"}


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
ACCOUNT = "- {accessKey: account-%d, secretKey: hidden-secret}\n"


@pytest.mark.parametrize(
    "make",
    [
        lambda: LAUGHS,
        lambda: "a: &a x\nb: [" + "*a," * 300_000 + "]",
        lambda: "[" * SIZE_MAX,
        lambda: "{" * SIZE_MAX,
        lambda: "- " * (SIZE_MAX // 2),
        lambda: "? " * (SIZE_MAX // 2),
        lambda: "[?" * (SIZE_MAX // 2),
        lambda: "a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 1000)),
        lambda: "accounts: [" + "x," * (SIZE_MAX // 2 - 10) + "]",
        slow(lambda: "accounts: [" + "{}," * (SIZE_MAX // 3 - 10) + "]"),
        lambda: "x" * SIZE_MAX,
        lambda: "'" + "''" * (SIZE_MAX // 2 - 2),
        lambda: '"' + "\\x41" * (SIZE_MAX // 4 - 2) + '"',
        lambda: "a: |\n" + "\n" * (SIZE_MAX - 10),
        lambda: "#" * SIZE_MAX,
        lambda: "%TAG " * (SIZE_MAX // 5),
        lambda: "---\n" * (SIZE_MAX // 4),
        lambda: "&" + "a" * (SIZE_MAX - 1),
        lambda: "!" * SIZE_MAX,
        lambda: "\n".join(f"k{number}: 1" for number in range(80_000)),
        slow(lambda: "accounts:\n" + "".join(ACCOUNT % number for number in range(15_000))),
        lambda: "accounts:\n" + ACCOUNT % 1 * 15_000,
        lambda: "globalWhiteRemoteAddresses: [" + "1.2.3.*," * 100_000 + "x]",
        lambda: "globalWhiteRemoteAddresses: ['10.0.0.{" + "1," * 500_000 + "1}']",
        lambda: (
            "accounts:\n- {accessKey: somebody, secretKey: hidden-secret, topicPerms: ["
            + "a=PUB," * 170_000
            + "a]}"
        ),
    ],
    ids=lambda make: make()[:12].encode("unicode_escape").decode(),
)
def test_a_file_that_is_all_work_is_read_within_its_bounds(make: Callable[[], str]) -> None:
    """As large as a file may be; refused, or without a single account."""
    try:
        rules = read_rules([(Path("plain_acl.yml"), make().encode())])
    except AccessFileError as error:
        assert "hidden" not in str(error)
        assert len(str(error)) < 1000
    else:
        assert not rules.accounts
