"""RocketMQ's Java client as commands: each call is one JVM that prints JSON lines.

The clients ask for routes, send heartbeats and keep offsets every second, so that nothing waits
for the half minute that is their default.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence

from tests.interop.children import Child, Children, Event
from tests.interop.java import CLIENT, java, java_with_tools_5
from tests.interop.servers import Cluster
from tests.support.patience import LIMIT_S

PACKAGE = "skylarkmq.interop"

BINARY_HEADERS = "-Drocketmq.serialize.type=ROCKETMQ"
LONG_NAMES = "-Dorg.apache.rocketmq.client.sendSmartMsg=false"
FAST_PORT = "-Dcom.rocketmq.sendMessageWithVIPChannel=true"
# How often a consumer shares out queues unasked. LATE: only a notification of the broker does.
REBALANCE = "-Drocketmq.client.rebalance.waitInterval="
REBALANCE_SOON = f"{REBALANCE}1000"
REBALANCE_LATE = f"{REBALANCE}600000"
LOCK_SOON = "-Drocketmq.client.rebalance.lockInterval=1000"


class JavaTools:
    """The programs of tests/interop/java against a broker or a cluster."""

    def __init__(self, children: Children, broker: Cluster) -> None:
        self._children = children
        self._broker = broker

    def produce(
        self, topic: str, mode: str, count: int, *options: str, **args: str | int
    ) -> list[Event]:
        """Send and return what became of each message; nothing is said of one-way sends."""
        child = self.start_produce(topic, mode, count, *options, **args)
        child.event("done")
        child.finish()
        return child.named("error") + child.named("sent")

    def start_produce(
        self, topic: str, mode: str, count: int, *options: str, **args: str | int
    ) -> Child:
        args = {"group": "P_interop", **args, "topic": topic, "mode": mode, "count": count}
        return self._start("Produce", args, *options)

    def consume(self, topic: str, group: str, *options: str, **args: str | int) -> Child:
        """Start a push consumer; `finish` stops it cleanly."""
        if not any(option.startswith(REBALANCE) for option in options):
            options = (*options, REBALANCE_SOON)
        return self._start("Consume", {**args, "topic": topic, "group": group}, *options)

    def pop(self, topic: str, group: str, **args: str | int) -> Child:
        """Start a push consumer of 5.x whose broker says that it pops; `finish` stops it."""
        args = {**args, "topic": topic, "group": group}
        return self._start("Pop", args, REBALANCE_SOON, of_5=True)

    def recall(self, topic: str, count: int, **args: str | int) -> Child:
        """Have a producer of 5.x send timed messages, and take every other one back."""
        args = {"group": "P_recall", **args, "topic": topic, "count": count}
        child = self._start("Recall", args, of_5=True)
        child.event("done")
        child.finish()
        return child

    def received(self, topic: str, group: str, count: int) -> list[Event]:
        """What a consumer of a group gets, until it has `count` messages."""
        child = self.consume(topic, group)
        child.count("message", count)
        child.finish()
        return child.named("message")

    def lite_pull(self, topic: str, group: str, count: int, **args: str | int) -> list[Event]:
        """Poll until `count` messages have come, commit, stop."""
        child = self.start_lite_pull(topic, group, count=count, **args)
        child.event("done")
        child.finish()
        return child.named("message")

    def start_lite_pull(self, topic: str, group: str, **args: str | int) -> Child:
        """A lite pull consumer that is waited for elsewhere."""
        return self._start("LitePull", {**args, "topic": topic, "group": group}, REBALANCE_SOON)

    def transact(self, topic: str, group: str, **args: str | int) -> Child:
        """A transactional producer, when it has sent all; it answers checks until `finish`."""
        child = self._start("Transact", {**args, "topic": topic, "group": group})
        child.event("done")
        return child

    def request(self, topic: str, count: int, **args: str | int) -> list[Event]:
        """Send requests and return their replies and errors."""
        args = {"group": "P_request", **args, "topic": topic, "count": count}
        child = self._start("Request", args)
        child.event("done")
        child.finish()
        return child.named("error") + child.named("reply")

    def reply(self, topic: str, group: str, **args: str | int) -> Child:
        """Start a consumer that replies; `finish` stops it cleanly."""
        return self._start("Reply", {**args, "topic": topic, "group": group}, REBALANCE_SOON)

    def pull(
        self,
        topic: str,
        group: str,
        *,
        sql: Sequence[str] = (),
        tags: Sequence[str] = (),
        **args: str | int,
    ) -> list[Event]:
        """Read a topic through expressions, with the pull consumer of old; what each found."""
        lists = {"sql": json.dumps(list(sql)), "tags": json.dumps(list(tags))}
        child = self._start("Pull", {**args, **lists, "topic": topic, "group": group})
        child.event("done")
        child.finish()
        return child.named("matched") + child.named("committed")

    def queues(self, topic: str, **args: str | int) -> list[Event]:
        """The queues of a topic, created first when `create` says how many."""
        child = self._start("Queues", {"group": "P_queues", **args, "topic": topic})
        child.event("done")
        child.finish()
        return child.named("queue")

    def find(self, topic: str, **args: str | int) -> list[Event]:
        """Look messages up by `key`, `place` or `unique`: what was found, or the error."""
        child = self._start("Find", {"group": "P_find", **args, "topic": topic})
        child.event("done")
        child.finish()
        return child.named("message") + child.named("error")

    def _start(
        self, main: str, args: dict[str, str | int], *options: str, of_5: bool = False
    ) -> Child:
        folder = self._children.folder
        options = (
            "-Xmx96m",
            f"-Duser.home={folder}",
            f"-Drocketmq.client.logRoot={folder}",
            "-Drocketmq.client.logLevel=WARN",
            f"-Drocketmq.client.localOffsetStoreDir={folder}/offsets-{len(self._children.all)}",
            *options,
        )
        args = {"namesrv": self._broker.namesrv, **args}
        words = [f"{name}={value}" for name, value in args.items()]
        command = (
            java_with_tools_5(f"{PACKAGE}.{main}", *words, options=options)
            if of_5
            else java(CLIENT, f"{PACKAGE}.{main}", *words, options=options)
        )
        return self._children.start(main, command)


def holds_queues(child: Child, count: int) -> set[int]:
    """Wait until a consumer has exactly so many queues of its topic and return them."""

    def held() -> set[int] | None:
        events = child.named("queues")
        queues = set(events[-1]["queues"]) if events else set[int]()
        return queues if len(queues) == count else None

    found: set[int] = child.wait_for(f"{count} queues", held)
    return found


def share_queues(consumers: Sequence[Child], count: int) -> list[set[int]]:
    """Wait until each of some consumers has queues of its topic, and together they have all.

    What one has is told now and then; on the way there two may say the same of a queue.
    """
    deadline = time.monotonic() + LIMIT_S
    while True:
        told = [consumer.named("queues") for consumer in consumers]
        held = [set(events[-1]["queues"]) if events else set[int]() for events in told]
        if all(held) and sorted(itertools.chain(*held)) == list(range(count)):
            return held
        assert time.monotonic() < deadline, f"{count} queues are not shared: {held}"
        time.sleep(0.05)


def receives(child: Child, body: str) -> None:
    """Wait until a consumer has got a message."""
    child.wait_for(body, lambda: body in bodies(child.named("message")))


def bodies(events: list[Event]) -> list[str]:
    """The bodies of messages, sorted."""
    return sorted(event["body"] for event in events)


def numbered(prefix: str, count: int) -> list[str]:
    """The bodies that a producer gives `count` messages, sorted."""
    return sorted(f"{prefix}-{index}" for index in range(count))
