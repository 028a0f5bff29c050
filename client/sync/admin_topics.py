"""Topics, brokers and name servers, blocking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from skylarkmq.client.admin.results import BrokerRuntime, ClusterSummary, TopicDescription
from skylarkmq.client.sync.admin_part import AdminPart


class TopicAdmin(AdminPart):
    """The part of Admin for topics; see `skylarkmq.client.Admin`."""

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        perm: str = "rw",
        order: bool = False,
        cluster: str | None = None,
        brokers: Sequence[str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic and wait until the name servers tell clients of it."""
        self._inner.run(
            lambda it: it.create_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                perm=perm,
                order=order,
                cluster=cluster,
                brokers=brokers,
                exist_ok=exist_ok,
            )
        )

    def update_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        perm: str | None = None,
        order: bool | None = None,
        brokers: Sequence[str] | None = None,
    ) -> None:
        """Change what is given, on all brokers that have the topic or on those named."""
        self._inner.run(
            lambda it: it.update_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                perm=perm,
                order=order,
                brokers=brokers,
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages from all brokers and name servers."""
        self._inner.run(lambda it: it.delete_topic(topic, cluster=cluster))

    def list_topics(
        self, *, cluster: str | None = None, system: bool = False, groups: bool = False
    ) -> list[str]:
        """Return the topics' names, sorted; those of the client's namespace if it has one."""
        return self._inner.run(
            lambda it: it.list_topics(cluster=cluster, system=system, groups=groups)
        )

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return settings, queues and consumer groups of a topic."""
        return self._inner.run(lambda it: it.describe_topic(topic))

    def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that have consumed or consume a topic."""
        return self._inner.run(lambda it: it.topic_groups(topic))


class ClusterAdmin(AdminPart):
    """The part of Admin for brokers and name servers; see `skylarkmq.client.Admin`."""

    def cluster(self) -> ClusterSummary:
        """Return the brokers that are registered."""
        return self._inner.run(lambda it: it.cluster())

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return all settings of a broker by RocketMQ's names."""
        return self._inner.run(lambda it: it.broker_config(broker))

    def set_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs; it writes them into its file."""
        self._inner.run(lambda it: it.set_broker_config(broker, changes))

    def name_server_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server by its address."""
        return self._inner.run(lambda it: it.name_server_config())

    def broker_runtime(self, broker: str) -> BrokerRuntime:
        """Return what a broker counts and measures."""
        return self._inner.run(lambda it: it.broker_runtime(broker))

    def stop_writes(self, broker: str) -> int:
        """Let name servers tell clients not to send to a broker; return how many topics changed."""
        return self._inner.run(lambda it: it.stop_writes(broker))

    def allow_writes(self, broker: str) -> int:
        """Undo `stop_writes`; return how many topics changed."""
        return self._inner.run(lambda it: it.allow_writes(broker))
