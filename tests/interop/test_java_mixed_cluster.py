"""One topic over a broker of each kind, behind a name server of each kind: processes are killed.

No acknowledged message is missing, and sends go on at those who are left.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.admin_tools import AdminRefusedError, JavaAdmin
from tests.interop.children import Child, Children
from tests.interop.mixed_cluster import OURS, THEIRS, MixedCluster
from tests.interop.tools import JavaTools

pytestmark = pytest.mark.interop

A_SECOND = 20  # messages


@pytest.fixture
def java(mixed: MixedCluster, children: Children) -> JavaTools:
    return JavaTools(children, mixed)


class Traffic:
    """A Java producer that sends on and on, and a Java consumer of the same topic."""

    def __init__(self, java: JavaTools, topic: str, group: str) -> None:
        self._consumer = java.consume(topic, group)
        self._producer: Child = java.start_produce(topic, "steady", A_SECOND)

    def goes_on(self, *names: str) -> None:
        """Wait until further messages were acknowledged by each of these brokers."""
        before = self._acknowledged()

        def further() -> bool:
            more = self._acknowledged() - before
            return all(more[name] >= A_SECOND for name in names)

        self._producer.wait_for(f"sends to {', '.join(names)}", further)

    def end(self) -> None:
        """Stop; all that was acknowledged has come, and no send had failed."""
        self._producer.finish()
        assert self._producer.named("error") == []
        sent = {f"m-{event['index']}" for event in self._producer.named("sent")}
        assert {event["status"] for event in self._producer.named("sent")} == {"SEND_OK"}

        def received() -> bool:
            return sent <= {event["body"] for event in self._consumer.named("message")}

        self._consumer.wait_for("all that was acknowledged", received)
        self._consumer.finish()

    def _acknowledged(self) -> Counter[str]:
        return Counter(event["broker_name"] for event in self._producer.named("sent"))


@pytest.mark.parametrize(("killed", "left"), [(OURS, THEIRS), (THEIRS, OURS)])
def test_a_broker_is_killed_and_comes_back(
    mixed: MixedCluster, java: JavaTools, topic: str, group: str, killed: str, left: str
) -> None:
    queues = java.queues(topic, create=2)
    assert Counter(queue["broker_name"] for queue in queues) == {OURS: 2, THEIRS: 2}
    traffic = Traffic(java, topic, group)
    traffic.goes_on(OURS, THEIRS)
    mixed.brokers[killed].kill()
    traffic.goes_on(left)
    mixed.brokers[killed].start()
    traffic.goes_on(OURS, THEIRS)
    traffic.end()


@pytest.mark.parametrize("killed", ["ours", "theirs"])
def test_a_name_server_is_killed_and_comes_back_empty(
    mixed: MixedCluster, java: JavaTools, children: Children, topic: str, group: str, killed: str
) -> None:
    names = mixed.our_names if killed == "ours" else mixed.their_names
    java.queues(topic, create=2)
    traffic = Traffic(java, topic, group)
    traffic.goes_on(OURS, THEIRS)
    names.kill()
    traffic.goes_on(OURS, THEIRS)
    java.queues(f"{topic}_meanwhile", create=1)
    names.start()
    alone = JavaAdmin(children, names)

    def routed() -> bool:
        try:
            route = alone.call("examineTopicRouteInfo", f"{topic}_meanwhile")
        except AdminRefusedError:
            return False
        return {queue["brokerName"] for queue in route["queueDatas"]} == {OURS, THEIRS}

    alone.until("both brokers", routed)
    alone.finish()
    traffic.goes_on(OURS, THEIRS)
    traffic.end()
