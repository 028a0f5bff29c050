"""RocketMQ's administration tool, in one JVM: mqadmin's command lines, calls of its library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from tests.interop.children import Child, Children, Event
from tests.interop.java import CLIENT, java, java_with_tools_5
from tests.interop.servers import Broker, Cluster
from tests.support.patience import LIMIT_S

LOGGING = "<configuration><root level='OFF'/></configuration>"  # of mqadmin itself
ASK_AGAIN_S = 0.2

Queues = dict[tuple[str, int], Any]


class AdminRefusedError(AssertionError):
    """A call of the library threw; `event` says what."""

    def __init__(self, event: Event) -> None:
        super().__init__(str(event))
        self.event = event


class JavaAdmin:
    """The administration tool against a broker or a cluster."""

    def __init__(
        self,
        children: Children,
        broker: Cluster,
        keys: tuple[str, str] | None = None,
        *,
        of_5: bool = False,
        jvm: tuple[str, ...] = (),
    ) -> None:
        """Start it; `keys` are access key and secret of its account; `of_5`: as of 5.3; `jvm` are
        further options of its JVM.
        """
        self._broker = broker
        home = children.folder / f"admin{'5' if of_5 else ''}-{len(children.all)}"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text(LOGGING)
        options = (
            "-Xmx128m",
            f"-Duser.home={home}",
            f"-Drocketmq.home.dir={home}",
            f"-Drocketmq.client.logRoot={home}",
            *jvm,
        )
        words = [f"namesrv={broker.namesrv}"]
        if keys is not None:
            words += [f"accessKey={keys[0]}", f"secretKey={keys[1]}"]
            text = f"accessKey: {keys[0]}\nsecretKey: {keys[1]}\n"
            (home / "conf" / "tools.yml").write_text(text)
        main = "skylarkmq.interop.Admin"
        command = (
            java_with_tools_5(main, *words, options=options)
            if of_5
            else java(CLIENT, main, *words, options=options)
        )
        self._child: Child = children.start("Admin", command)
        self._child.event("started")
        self._asked = 0

    @property
    def address(self) -> str:
        """Of the broker, as the tool's commands take it."""
        assert isinstance(self._broker, Broker)
        return f"127.0.0.1:{self._broker.port}"

    def run(self, *words: str) -> str:
        """What mqadmin prints for a command line; where the name server is, it is told."""
        return self.run_at(self._broker.namesrv, *words)

    def run_at(self, namesrv: str, *words: str) -> str:
        """The same, told of other name servers."""
        text: str = self._ask({"words": [*words, "-n", namesrv]})["text"]
        return text

    def help(self) -> str:
        """What mqadmin prints without a command: all of them."""
        text: str = self._ask({"words": []})["text"]
        return text

    def call(self, method: str, *args: Any) -> Any:
        """What a method of DefaultMQAdminExt returns."""
        answer = self._ask({"method": method, "args": list(args)})
        if "type" in answer:
            raise AdminRefusedError(answer)
        return answer.get("value")

    def refused(self, method: str, *args: Any) -> Event:
        """What a method threw instead of returning."""
        try:
            value = self.call(method, *args)
        except AdminRefusedError as refusal:
            return refusal.event
        raise AssertionError(f"{method}{args} returned {value}")

    def left_to_read(self, group: str, topic: str) -> dict[int, int]:
        """How many messages of each queue a group has not confirmed yet."""
        table = self.call("examineConsumeStats", group, topic)["offsetTable"]
        return {
            queue_id: row["brokerOffset"] - row["consumerOffset"]
            for (_, queue_id), row in queues(table).items()
        }

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """Ask again until the answer is true, and return it."""
        for _ in range(int(LIMIT_S / ASK_AGAIN_S)):
            if found := look():
                return found
            time.sleep(ASK_AGAIN_S)
        self._child.fail(f"waited for {what}")
        return None

    def finish(self) -> None:
        """End the JVM."""
        self._child.finish()

    def _ask(self, command: Event) -> Event:
        self._child.say(json.dumps(command))
        self._asked += 1
        return self._child.count("answer", self._asked)[-1]


def queues(table: dict[str, Any]) -> Queues:
    """A table by queue, whose keys are JSON, by broker name and queue id."""
    found: Queues = {}
    for key, value in table.items():
        queue = json.loads(key)
        found[queue["brokerName"], queue["queueId"]] = value
    return found


def rows(text: str) -> list[list[str]]:
    """The rows of a table that mqadmin printed, without its head, cut at blanks."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    heads = [index for index, line in enumerate(lines) if line[0].startswith("#")]
    return lines[heads[0] + 1 :] if heads else lines
