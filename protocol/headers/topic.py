"""Headers about topics for administrators: topics (17, 202, 215, 351), a broker's configuration
(26), units of a queue (321); statistics (315, 317). The bodies are in `bodies/topic.py` and
`bodies/stats.py`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name)
"""

from skylarkmq.protocol.headers.fields import Header, JavaInt, JavaLong


class GetTopicStatsInfoRequestHeader(Header, kw_only=True, frozen=True):
    """The offsets of a topic's queues."""

    topic: str


class CreateTopicRequestHeader(Header, kw_only=True, frozen=True):
    """The whole configuration of a topic; `perm` is the sum of 4 read, 2 write, 1 inherit.

    `attributes` are changes to RocketMQ 5's attributes (`topic_attributes.py`).
    """

    topic: str
    default_topic: str
    read_queue_nums: JavaInt
    write_queue_nums: JavaInt
    perm: JavaInt
    topic_filter_type: str
    topic_sys_flag: JavaInt | None = None
    order: bool = False
    attributes: str | None = None


class DeleteTopicRequestHeader(Header, kw_only=True, frozen=True):
    """Which topic goes from a broker."""

    topic: str


class GetTopicConfigRequestHeader(Header, kw_only=True, frozen=True):
    """Whose configuration is asked for; 5.x also says `lo`, about mapped queues."""

    topic: str


class GetBrokerConfigResponseHeader(Header, kw_only=True, frozen=True):
    """`version` is a data version as JSON; the configuration itself is the body."""

    version: str


class QueryConsumeQueueRequestHeader(Header, kw_only=True, frozen=True):
    """Units of a queue from `index` on; a negative one counts back from the end."""

    topic: str
    queue_id: JavaInt
    index: JavaLong
    count: JavaInt
    consumer_group: str | None = None


class ViewBrokerStatsDataRequestHeader(Header, kw_only=True, frozen=True):
    """Which statistic is wanted, and of what: a topic, `topic@group`, a cluster."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerHeader(Header, kw_only=True, frozen=True):
    """Where all groups are; with `is_order`, in ordered topics alone."""

    is_order: bool
