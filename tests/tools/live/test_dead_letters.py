"""`dlq list`: which groups have dead letters, and why each letter became one."""

from __future__ import annotations

from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from skylarkmq.tools.dlq import LIST_COLUMNS, REASON_MIN
from skylarkmq.tools.output import cells, narrow
from skylarkmq.tools.running import INCOMPLETE, REFUSED, USAGE
from tests.tools.live.conftest import give_up
from tests.tools.live.shell import Shell

ADMIN = Account("the-admin", "secret-enough", admin=True)
OWN = Account(
    "own-letters", "secret-enough", default_topic_right="SUB", group_rights={"own": "SUB"}
)
NONE = Account("no-letters", "secret-enough")


def test_the_groups_with_dead_letters_are_listed(shell: Shell, broker: SyncBroker) -> None:
    assert shell("dlq", "list").json == []
    assert "no group has dead letters" in shell("dlq", "list", "-o", "table").err
    give_up(broker, "few", 1)
    give_up(broker, "many", 3)
    many, few = shell("dlq", "list").json
    assert (many["group"], many["letters"]) == ("many", 3)
    assert (few["group"], few["letters"]) == ("few", 1)
    assert few["last_given_up_at"] == shell("dlq", "list", "few").json[0]["stored_at"]
    assert shell("dlq", "list", "--limit", "1").json == [many]
    assert shell("dlq", "list", "-o", "table").out.startswith("GROUP  LETTERS  LAST GIVEN UP\nmany")
    shell("dlq", "list", "--since", "10m", code=USAGE)
    assert "GROUP, or the groups that have some." in shell("dlq", "--help").out


def test_each_letter_has_its_reason_before_its_body(shell: Shell) -> None:
    with run_broker_sync() as broker:
        words = ("dlq", "list", "--namesrv", broker.namesrv_addr)
        give_up(broker, "told", 2, reason="no such customer")
        give_up(broker, "untold", 1)
        lines = shell(*words, "told", "-o", "table").out.splitlines()
        assert shell(*words, "untold", "-o", "table").out.endswith("  m-0\n")
        rows = shell(*words, "told").json
    ends = [f"  (no such customer) m-{number}" for number in range(2)]
    assert all(line.endswith(end) for line, end in zip(lines[1:], ends, strict=True))
    shown = narrow([*LIST_COLUMNS], cells(rows, LIST_COLUMNS), 80, fits=REASON_MIN)
    assert max(map(len, shown)) <= 80
    assert all(line.endswith(end) for line, end in zip(shown[-2:], ends, strict=True))


def test_an_account_sees_the_groups_that_it_may_use(shell: Shell) -> None:
    with run_broker_sync(accounts=[ADMIN, OWN, NONE]) as guarded:
        account = ("--namesrv", guarded.namesrv_addr, "--secret-key", "secret-enough")
        words = ("dlq", "list", *account)
        for group in ("own", "other"):
            topic = f"%DLQ%{group}"
            shell("topic", "create", topic, *account, "--access-key", "the-admin")
            shell("send", topic, "given up", *account, "--access-key", "the-admin")
        everything = shell(*words, "--access-key", "the-admin").json
        assert [row["group"] for row in everything] == ["other", "own"]
        hidden = {"letters": None, "last_given_up_at": None}
        for name, own in (("own-letters", 1), ("no-letters", None)):
            said = shell(*words, "--access-key", name, code=INCOMPLETE)
            rows = {row.pop("group"): row for row in said.json if "group" in row}
            assert (rows["own"]["letters"], rows["other"]) == (own, hidden), said
            assert "lacks SUB" in said.err
        wrong = (*account[:2], "--access-key", "own-letters", "--secret-key", "another secret")
        shell("dlq", "list", *wrong, code=REFUSED)
