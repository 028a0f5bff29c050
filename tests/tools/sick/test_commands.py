"""Commands where one broker of three is sick: what is known of the others is printed."""

from __future__ import annotations

import logging

import pytest

from skylarkmq.tools.running import FAILED, INCOMPLETE, UNREACHABLE
from tests.tools.admin.support import Shell
from tests.tools.command import Said
from tests.tools.sick.conftest import SICK, SICKNESSES, WELL, Cluster

pytestmark = pytest.mark.timing

LOOKS = ("replicas", "addresses", "clocks", "disks", "registrations", "topics", "groups")
PRINTED = {
    "group list": ("billing",),
    "group members billing": ("billing",),
    "client list": (),
    "client list --role producer": (),
    "tx list": (),
    "topic list --cluster DefaultCluster": ("orders",),
    "topic groups orders": ("billing",),
    "config list --match brokerName": WELL,
    "group lag": ("billing",),
    "group lag billing": WELL,
    "group describe billing": WELL,
    "topic describe orders": WELL,
    "topic stats orders": WELL,
    "dlq list billing": WELL,
    "delay list": WELL,
    "config get brokerName": WELL,
    "msg query orders --key k": WELL,
    "peek orders --count 100": WELL,
}
"""Commands, and what they can tell of the brokers that are well."""


WHY = {"refusing": "refused"}


def unanswered_in(said: Said) -> list[dict[str, str]]:
    """Return what a program reads of it: a key of one thing, the last row of a list."""
    told = said.json
    found: list[dict[str, str]] = (told[-1] if isinstance(told, list) else told)["unanswered"]
    return found


def names_the_sick(said: Said, cluster: Cluster) -> bool:
    """Whether a person reads who did not answer."""
    return SICK in said.err or cluster.sick_address in said.err


@pytest.mark.parametrize("sickness", ["none"])
@pytest.mark.parametrize(("words", "printed"), PRINTED.items(), ids=PRINTED.keys())
def test_where_all_are_well_all_is_printed(
    shell: Shell, words: str, printed: tuple[str, ...]
) -> None:
    said = shell.ok(*words.split())
    assert all(each in said.out for each in printed)


@pytest.mark.parametrize("sickness", SICKNESSES)
@pytest.mark.parametrize(("words", "printed"), PRINTED.items(), ids=PRINTED.keys())
def test_what_is_known_of_the_others_is_printed(
    shell: Shell, cluster: Cluster, words: str, printed: tuple[str, ...]
) -> None:
    said = shell(*words.split())
    assert all(each in said.out for each in printed)
    assert names_the_sick(said, cluster)
    assert said.code == INCOMPLETE
    (unanswered,) = unanswered_in(said)
    assert (unanswered["broker"], unanswered["address"]) == (SICK, cluster.sick_address)
    assert unanswered["why"] == WHY.get(cluster.sickness, cluster.sickness)


@pytest.mark.parametrize("sickness", SICKNESSES)
@pytest.mark.parametrize("words", ["group describe nobody", "msg query orders --key nothing"])
def test_what_is_not_found_may_be_where_nobody_answers(
    shell: Shell, cluster: Cluster, words: str
) -> None:
    said = shell(*words.split())
    assert said.code == INCOMPLETE
    assert names_the_sick(said, cluster)


@pytest.mark.parametrize("sickness", ["silent"])
def test_an_empty_answer_is_said_to_be_so_as_far_as_brokers_answered(shell: Shell) -> None:
    said = shell("tx", "list", "-o", "table")
    assert (said.code, said.out) == (INCOMPLETE, "")
    assert "no open transactions, as far as brokers answered" in said.err


@pytest.mark.parametrize("sickness", SICKNESSES)
def test_each_look_names_who_did_not_answer(shell: Shell, cluster: Cluster) -> None:
    watch = ("--watch", "--times", "2", "--every", "10ms")
    said = shell("group", "lag", "billing", *watch)
    assert [[one["broker"] for one in each["unanswered"]] for each in said.lines] == [[SICK]] * 2
    assert said.err.count(f"warning: without {SICK}") == 2
    assert said.code == INCOMPLETE


@pytest.mark.parametrize("sickness", SICKNESSES)
def test_a_tail_begins_with_what_the_others_have(shell: Shell, cluster: Cluster) -> None:
    said = shell("tail", "orders", "--last", "8", "--count", "8")
    assert [each["topic"] for each in said.lines] == ["orders"] * 8
    assert names_the_sick(said, cluster)
    assert said.code == INCOMPLETE


@pytest.mark.parametrize("sickness", SICKNESSES)
@pytest.mark.parametrize("more", ["--since 1h", "--since 1h --tags x", "--last 9 --tags x"])
def test_a_tail_reads_what_the_others_have(shell: Shell, cluster: Cluster, more: str) -> None:
    said = shell("tail", "orders", *more.split(), "--for", "1s")
    assert {each["topic"] for each in said.lines} == ({"orders"} if more == "--since 1h" else set())
    assert names_the_sick(said, cluster)
    assert said.err.count("warning: without") == 1
    assert said.code == INCOMPLETE


@pytest.mark.parametrize("sickness", SICKNESSES)
def test_a_tail_from_now_on_begins_without_the_sick(shell: Shell, cluster: Cluster) -> None:
    said = shell("tail", "orders", "--for", "100ms")
    assert (said.lines, said.code) == ([], INCOMPLETE)
    assert names_the_sick(said, cluster)


@pytest.mark.parametrize("sickness", SICKNESSES)
@pytest.mark.parametrize(
    "words", ["consumerProgress -g billing", "getBrokerConfig -c DefaultCluster"]
)
def test_commands_of_rocketmq_tell_it_too(shell: Shell, cluster: Cluster, words: str) -> None:
    said = shell("mqadmin", *words.split())
    assert all(each in said.out for each in WELL)
    assert said.code == INCOMPLETE
    assert names_the_sick(said, cluster)


@pytest.mark.parametrize("sickness", ["none"])
def test_where_no_broker_answers_the_command_says_so(
    shell: Shell, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = [each["address"] for each in shell.json("cluster", "status")["brokers"]]
    monkeypatch.setattr("skylarkmq.tools.connection.Client", cluster.without(everyone))
    assert shell("group", "list").code == UNREACHABLE
    said = shell("doctor", *(word for look in LOOKS for word in ("--only", look)))
    assert said.code == FAILED
    kinds = {(each["kind"], each["subject"]) for each in said.json["findings"]}
    assert ("not_looked_at", "groups") in kinds
    assert {("broker_unreachable", f"{name} (master)") for name in (*WELL, SICK)} <= kinds


@pytest.mark.parametrize("sickness", SICKNESSES)
def test_the_status_of_a_cluster_names_who_does_not_answer(shell: Shell) -> None:
    brokers = {each["broker"]: each["error"] for each in shell.json("cluster", "status")["brokers"]}
    assert {name for name, error in brokers.items() if error is None} >= set(WELL)
    assert brokers.keys() == {*WELL, SICK}


@pytest.mark.parametrize("sickness", ["silent", "away"])
def test_the_health_of_a_cluster_names_who_does_not_answer(shell: Shell) -> None:
    said = shell("cluster", "health")
    assert said.code == FAILED
    assert {(each["kind"], each["subject"].split()[0]) for each in said.json} == {
        ("broker_unreachable", SICK)
    }


@pytest.mark.parametrize("sickness", ["refusing"])
def test_the_health_of_a_cluster_tells_a_refusal_from_silence(shell: Shell) -> None:
    (problem,) = shell("cluster", "health").json
    assert problem["subject"].startswith(SICK)
    assert problem["kind"] == "broker_refuses"


@pytest.mark.parametrize("sickness", SICKNESSES)
@pytest.mark.parametrize("look", LOOKS)
def test_each_look_of_the_doctor_goes_on(shell: Shell, look: str) -> None:
    said = shell("doctor", "--only", look)
    assert said.code in (0, FAILED), said.err
    assert said.json["looked_at"] == [look]


@pytest.mark.parametrize("sickness", SICKNESSES)
def test_the_doctor_tells_who_is_sick_and_what_it_could_not_look_at(
    shell: Shell, sickness: str
) -> None:
    said = shell("doctor", *(word for look in LOOKS for word in ("--only", look)))
    assert said.code == FAILED
    findings = {each["kind"]: each for each in said.json["findings"]}
    assert "not_looked_at" in findings
    assert any(SICK in each["subject"] for each in said.json["findings"])


@pytest.mark.parametrize("sickness", ["silent"])
def test_the_doctor_has_no_other_words_than_its_findings(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(logging.root, "handlers", [])  # as in a process of its own
        assert shell("doctor").err == ""
