"""What `doctor` asks a cluster, and what it makes of the answers.

replicas        what `Admin.cluster_health` finds: brokers and slaves that do not answer, slaves
                behind, disks nearly full, registrations that a name server lacks
addresses       every advertised address is dialled from here
clocks          a broker's time is its start plus how long it runs (28), to the second
disks           how long appends take, what waits for the disk (28)
registrations   topics that one name server knows and another one does not
topics          a topic's settings that differ between brokers
groups          members that subscribe differently; lag that nobody works on
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from skylarkmq.client.admin import (
    Admin,
    BrokerStatus,
    GroupMembers,
    Problem,
    ReplicaStatus,
    TopicSettings,
    base,
)
from skylarkmq.client.errors import NotFound, RocketMQError, RouteNotFound, TopicNotExist
from skylarkmq.client.instance import Client, services_of
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.tools.connection import ASKED_AT_ONCE
from skylarkmq.tools.doctor.findings import CRITICAL_KINDS, Finding, Severity
from skylarkmq.tools.local.addresses import is_loopback
from skylarkmq.tools.output import Report

DIAL_S: Final = 3.0
DISK_CRITICAL: Final = 0.9
SLOW_MS: Final = 100
SLOW_SHARE: Final = 0.01
APPENDS_MIN: Final = 100
BEHIND_MAX: Final = 256 << 20
LOCK_MS_MAX: Final = 1000
WAIT_MS_MAX: Final = 200
_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_BIN: Final = re.compile(r"\[([^\]]+)\]:(\d+)")
_SIZE: Final = re.compile(r"([\d.]+) ?([kKMGTP]?)i?B")
_UNITS: Final = " KMGTP"
_SLOW_BINS: Final = frozenset(
    {"100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"}
)


@dataclass(frozen=True, slots=True)
class Examination:
    """One look at a cluster.

    Attributes:
        at: makes a client of one name server alone, by its address; not started.
        asks_members: what they subscribe to, each of them. Without it, what brokers tell of that:
            ours do.
    """

    at: Callable[[str], Client]
    client: Client
    admin: Admin
    skew_max_s: float
    report: Report
    asks_members: bool = True

    async def found(self, looks: Iterable[str]) -> list[Finding]:
        """Return what these looks find; one that ends with an error leaves the others alone.

        Args:
            looks: names of the methods below.
        """
        found: list[Finding] = []
        for name in looks:
            look: Callable[[], Awaitable[list[Finding]]] = getattr(self, name)
            try:
                found += await look()
            except RocketMQError as error:
                found.append(not_looked_at(name, str(error)))
        return found

    async def brokers(self) -> tuple[BrokerStatus, ...]:
        """Return the brokers as they answer."""
        return (await self.admin.cluster_status()).brokers

    # Name servers and brokers

    async def replicas(self) -> list[Finding]:
        """Return what the SDK finds."""
        return of_problems(await self.admin.cluster_health())

    async def addresses(self) -> list[Finding]:
        """Dial what the brokers advertise."""
        servers = [*(await self.admin.cluster()).name_servers]
        brokers = await self.brokers()
        places = [(broker, each) for broker in brokers for each in broker.replicas]
        is_remote = not all(is_loopback(_host(server)) for server in servers)
        found: list[Finding] = []
        for number, (broker, each) in enumerate(places):
            self.report("addresses", number, len(places))
            subject = f"{broker.name} ({each.broker_id})"
            if is_remote and is_loopback(_host(each.address)):
                found.append(
                    Finding(
                        "loopback_advertised", "critical", subject,
                        f"it advertises {each.address}, which is every client's own machine, and "
                        f"the name servers are elsewhere ({', '.join(servers)})",
                        "Set brokerIP1 to an address that clients reach, and start it again",
                    )
                )  # fmt: skip
                continue
            why = await dial(services_of(self.client).config.mapped(each.address))
            if why is not None:
                found.append(
                    Finding(
                        "address_unreachable", "critical", subject,
                        f"{each.address}, which it advertises, cannot be reached from here: {why}",
                        "If the broker runs, set brokerIP1 to an address that clients reach, and "
                        "look at firewalls; name servers forget a broker that is gone",
                    )
                )  # fmt: skip
            elif each.is_master and each.error is None:
                found += await self._identity(broker.name, each.address)
        return found

    async def _identity(self, name: str, address: str) -> list[Finding]:
        """Check that the broker at an address is the one that is registered with it."""
        try:
            told = (await self.admin.broker_config(name)).get("brokerName", name)
        except RocketMQError:  # with access control, for administrators alone
            return []
        if told == name:
            return []
        return [
            Finding(
                "other_broker_answers", "critical", name,
                f"at {address}, which it advertises, the broker {told} answers",
                "Give each broker an address of its own: brokerIP1 and listenPort",
            )
        ]  # fmt: skip

    async def clocks(self) -> list[Finding]:
        """Compare the brokers' clocks with this machine's."""
        clock = services_of(self.client).clock
        found: list[Finding] = []
        for broker, each in await self._answering():
            asked_ms = clock.now_ms()
            values = await self._runtime(broker.name, each.broker_id)
            answered_ms = clock.now_ms()
            told_ms = broker_time_ms(values)
            if told_ms is None:
                continue
            # It is up to a second later there, and the question took a while.
            early_s = (told_ms - answered_ms) / 1000
            late_s = (told_ms + 1000 - asked_ms) / 1000
            skew_s = early_s if early_s > 0 else min(0.0, late_s)
            if abs(skew_s) > self.skew_max_s:
                way = "ahead of" if skew_s > 0 else "behind"
                found.append(
                    Finding(
                        "clock_skew", "warning", f"{broker.name} ({each.broker_id})",
                        f"its clock is {abs(skew_s):.0f} s {way} this machine's: delays, "
                        "retention, searches by time and transaction checks go by it",
                        "Let both machines follow the same time service (chrony, NTP)",
                    )
                )  # fmt: skip
        return found

    async def disks(self) -> list[Finding]:
        """Look for full and slow disks, and for what waits for them."""
        found: list[Finding] = []
        for broker, each in await self._answering():
            values = await self._runtime(broker.name, each.broker_id)
            found += disk_findings(f"{broker.name} ({each.broker_id})", values)
        return found

    async def _answering(self) -> list[tuple[BrokerStatus, ReplicaStatus]]:
        return [
            (broker, each)
            for broker in await self.brokers()
            for each in broker.replicas
            if each.error is None
        ]

    async def _runtime(self, broker: str, broker_id: int) -> Mapping[str, str]:
        try:
            return (await self.admin.broker_runtime(broker, broker_id=broker_id)).values
        except RocketMQError:  # it went away meanwhile, which another look tells
            return {}

    async def registrations(self) -> list[Finding]:
        """Compare the topics that each name server knows."""
        servers = (await self.admin.cluster()).name_servers
        if len(servers) < 2:
            return []
        known: dict[str, set[str]] = {}
        limit_s = services_of(self.client).config.request_timeout
        for server in servers:
            try:
                async with (
                    self.at(server) as client,
                    Admin(client=client, timeout=limit_s) as admin,
                ):
                    known[server] = set(await admin.list_topics(groups=True))
            except RocketMQError:
                continue  # another look tells that it does not answer
        everything = set[str]().union(*known.values())
        return [
            Finding(
                "topics_not_registered", "warning", server,
                f"it does not know {_listed(everything - topics)}, which other name servers know: "
                "clients that ask it cannot use them",
                "Do all brokers name it in namesrvAddr, and do they reach it? They register anew "
                "every 30 s",
            )
            for server, topics in known.items()
            if everything - topics
        ]  # fmt: skip

    # Topics and groups

    async def topics(self) -> list[Finding]:
        """Compare each topic's settings between brokers."""
        names = await self.admin.list_topics()

        async def look(name: str) -> list[Finding]:
            return topic_findings(name, (await self.admin.describe_topic(name)).settings)

        return await self._each("topics", names, look)

    async def groups(self) -> list[Finding]:
        """Look for members that differ, and for lag that nobody works on."""
        return await self._each("groups", await self.admin.list_groups(), self._group)

    async def _group(self, group: str) -> list[Finding]:
        members, progress = await asyncio.gather(
            self.admin.consumers(group), self.admin.progress(group)
        )
        if not members.members:
            if not progress.lag:
                return []
            return [
                Finding(
                    "lag_without_members", "warning", group,
                    f"{progress.lag} messages wait, and the group has no member",
                    "Start its consumers; if nobody needs them any more, delete the group, or skip "
                    "what waits with `skylarkmq group reset --to last`",
                )
            ]  # fmt: skip
        return differing_findings(await self._subscriptions(members), members)

    async def _subscriptions(self, members: GroupMembers) -> dict[str, frozenset[str]]:
        """Return what each member subscribes to, as it says itself."""
        told: dict[str, frozenset[str]] = {}
        if len(members.members) < 2 or not self.asks_members:
            return told
        for member in members.members:
            try:
                info = await self.admin.member_info(members.group, member.client_id)
            except RocketMQError:  # it left meanwhile, or its client does not tell
                continue
            told[member.client_id] = frozenset(
                f"{each.topic}:{each.expression}"
                for each in info.subscriptions
                if not each.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
            )
        return told

    async def _each(
        self, what: str, names: list[str], look: Callable[[str], Awaitable[list[Finding]]]
    ) -> list[Finding]:
        """Look at each name, some at the same time; who has gone meanwhile is left out."""
        done, refusals = 0, dict[str, RocketMQError]()

        async def one(name: str) -> list[Finding]:
            nonlocal done
            found: list[Finding] = []
            try:
                found = await look(name)
            except (NotFound, RouteNotFound, TopicNotExist):
                pass
            except RocketMQError as error:
                refusals[name] = error
            done += 1
            self.report(what, done, len(names))
            return found

        answers = await base.each(one, names, ASKED_AT_ONCE)
        findings = [each for found in answers for each in found]
        for name, error in [*refusals.items()][:1]:
            count = f"{len(refusals)} of {len(names)} could not be looked at"
            findings.append(not_looked_at(what, f"{count}, such as {name}: {error}"))
        return findings


def of_problems(problems: Iterable[Problem]) -> list[Finding]:
    """Return what the SDK found as findings."""
    found: list[Finding] = []
    for problem in problems:
        if problem.kind == "broker_refuses":
            found.append(not_looked_at(problem.subject, problem.text))
            continue
        severity: Severity = "critical" if problem.kind in CRITICAL_KINDS else "warning"
        found.append(Finding(problem.kind, severity, problem.subject, problem.text, problem.cure))
    return found


def not_looked_at(subject: str, cause: str) -> Finding:
    """Return that something was left out, which is no sign that all is well."""
    return Finding(
        "not_looked_at", "warning", subject, cause,
        "With access control, name an admin's account (--access-key, --secret-key); else try "
        "again once all brokers answer",
    )  # fmt: skip


async def dial(address: str) -> str | None:
    """Return why an address cannot be reached; None: it can."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except TimeoutError:
        return f"no answer within {DIAL_S:g} s"
    except (OSError, ValueError) as error:
        return str(error)
    writer.close()
    return None


def broker_time_ms(values: Mapping[str, str]) -> int | None:
    """Return a broker's time of day, whole seconds rounded down; None: it does not tell."""
    found = _RUNTIME.search(values.get("runtime", ""))
    boot = values.get("bootTimestamp", "")
    if found is None or not boot.isdigit():
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    return int(boot) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def disk_findings(subject: str, values: Mapping[str, str]) -> list[Finding]:
    """Return what a broker's runtime table (28) says against its disk."""
    found: list[Finding] = []

    def add(kind: str, severity: Severity, cause: str, cure: str) -> None:
        found.append(Finding(kind, severity, subject, cause, cure))

    for key, what in (("commitLogDiskRatio", "log"), ("consumeQueueDiskRatio", "queues")):
        used = _float(values.get(key))
        if used > DISK_CRITICAL:
            add(
                "disk_full",
                "critical",
                f"{used:.0%} of the disk of its {what} is used: it deletes "
                "messages early now, and refuses them when it is full",
                "Give it a larger disk, or keep messages for a shorter time (fileReservedTime)",
            )
    found += _slow_disk_findings(subject, values)
    behind = size_of(values.get("remainHowManyDataToFlush", ""))
    if behind > BEHIND_MAX:
        add(
            "flush_behind",
            "warning",
            f"{behind >> 20} MiB of its log are not on the disk yet: a power cut would lose them",
            "The disk is slower than what is sent; look at its throughput (iostat -x)",
        )
    undispatched = _float(values.get("dispatchBehindBytes"))
    if undispatched > BEHIND_MAX:
        add(
            "dispatch_behind",
            "warning",
            f"consumers do not see the last {int(undispatched) >> 20} MiB of its log yet",
            "Wait after a start; else look at its disk and processors",
        )
    waited_ms = _float(values.get("sendThreadPoolQueueHeadWaitTimeMills"))
    if waited_ms > WAIT_MS_MAX:
        add(
            "sends_wait",
            "warning",
            f"a send has waited for {waited_ms:.0f} ms to be looked at: senders are refused soon",
            "It has too much load, or its disk is slow",
        )
    return found  # fmt: skip


def _slow_disk_findings(subject: str, values: Mapping[str, str]) -> list[Finding]:
    """Return what a broker's counts of slow appends, and its append under way, say."""
    found: list[Finding] = []
    bins = {
        name: int(count) for name, count in _BIN.findall(values.get("putMessageDistributeTime", ""))
    }
    count, slow = sum(bins.values()), sum(bins.get(name, 0) for name in _SLOW_BINS)
    if count >= APPENDS_MIN and slow > count * SLOW_SHARE:
        found.append(
            Finding(
                "slow_disk",
                "warning",
                subject,
                f"{slow} of {count} appends took {SLOW_MS} ms or longer",
                "Look at the disk's own latency (iostat -x); other programs on it, or a network "
                "disk?",
            )
        )
    locked_ms = _float(values.get("pageCacheLockTimeMills"))
    if locked_ms > LOCK_MS_MAX:
        found.append(
            Finding(
                "slow_disk",
                "warning",
                subject,
                f"one append has been under way for {locked_ms:.0f} ms",
                "Look at the disk's own latency (iostat -x), and at free memory for the page cache",
            )
        )
    return found


def topic_findings(topic: str, settings: tuple[TopicSettings, ...]) -> list[Finding]:
    """Return what is wrong with a topic's settings."""
    found: list[Finding] = []
    for each in settings:
        if "r" in each.perm and "w" in each.perm and each.read_queues < each.write_queues:
            found.append(
                Finding(
                    "queues_not_read", "critical", topic,
                    f"{each.broker} takes messages for {each.write_queues} queues and lets "
                    f"{each.read_queues} be read: those of the others are seen by nobody",
                    "Give it as many read queues as write queues (`skylarkmq topic update`)",
                )
            )  # fmt: skip
    if len({(each.perm, each.read_queues, each.write_queues) for each in settings}) > 1:
        texts = [
            f"{each.broker}: {each.read_queues}/{each.write_queues} {each.perm}"
            for each in settings
        ]
        found.append(
            Finding(
                "topic_differs", "warning", topic,
                f"its read/write queues and rights differ between brokers: {', '.join(texts)}",
                "If nobody is moving it, make them alike (`skylarkmq topic update`)",
            )
        )  # fmt: skip
    return found


def differing_findings(told: Mapping[str, frozenset[str]], members: GroupMembers) -> list[Finding]:
    """Return whether members of a group subscribe to different things."""
    if len(set(told.values())) > 1:
        usual = Counter(told.values()).most_common(1)[0][0]
        others = [f"{who}: {', '.join(sorted(what)) or 'nothing'}"
                  for who, what in sorted(told.items()) if what != usual]  # fmt: skip
        cause = (
            f"most subscribe to {', '.join(sorted(usual)) or 'nothing'}, not so {'; '.join(others)}"
        )
    elif members.differing:
        cause = f"these subscribe to something else than others: {', '.join(members.differing)}"
    else:
        return []
    return [
        Finding(
            "subscriptions_differ", "critical", members.group,
            f"its members subscribe to different things ({cause}): messages are lost to it",
            "All members of a group run the same subscription; give others a group of their own",
        )
    ]  # fmt: skip


def size_of(text: str) -> int:
    """Return the bytes of a size for humans, such as `1.5 MiB`; 0 for none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return 0
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2].upper() or " "))


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _float(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


def _listed(names: set[str]) -> str:
    shown = sorted(names)[:5]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more
