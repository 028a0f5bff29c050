"""The broker's counters and their limits."""

from skylarkmq.broker.base.stats import OTHER, BrokerStats


def test_a_counter_is_the_same_object_each_time() -> None:
    stats = BrokerStats()
    counter = stats.topic_in("orders")
    counter.count += 2
    counter.bytes += 300
    assert stats.topic_in("orders") is counter
    assert stats.topic_in("orders", "delay") is not counter
    assert stats.topic_out("orders", "billing") is stats.topic_out("orders", "billing")


def test_topics_beyond_the_limit_share_one_series() -> None:
    stats = BrokerStats(series_limit=2)
    first, second = stats.topic_in("a"), stats.topic_in("b")
    third, fourth = stats.topic_in("c"), stats.topic_in("d")
    assert third is fourth
    assert third not in (first, second)
    assert stats.topic_in("a") is first
    assert (OTHER, "normal") in stats.topics_in
    assert len(stats.topics_in) == 3
    assert stats.series_dropped["messages_in"] == 2


def test_pairs_of_topic_and_group_have_their_own_limit() -> None:
    stats = BrokerStats(series_limit=1)
    stats.topic_in("a")
    counter = stats.topic_out("a", "g")
    assert stats.topic_out("a", "h") is stats.topic_out("b", "g")
    assert stats.topic_out("a", "g") is counter
    assert stats.series_dropped["messages_out"] == 2


def test_series_of_what_is_deleted_go_and_make_room() -> None:
    stats = BrokerStats(series_limit=2)
    stats.topic_in("a").count = 5
    stats.topic_in("b")
    stats.topic_out("a", "g").count = 3
    stats.topic_out("b", "h").count = 4
    stats.topic_back("a", "g").count = 1
    stats.topic_back("b", "h").count = 1
    stats.forget_topic("a")
    stats.forget_group("h")
    assert stats.sent_back == {}
    assert list(stats.topics_in) == [("b", "normal")]
    assert (stats.topics_out, stats.messages_out) == ({}, 7)
    assert stats.topic_in("c") is stats.topics_in["c", "normal"]


def test_a_free_text_reason_never_becomes_a_label() -> None:
    stats = BrokerStats()
    stats.connection_closed("peer")
    stats.connection_closed("reset by 10.0.0.7:51123")
    assert stats.connections_closed["peer"] == 1
    assert stats.connections_closed["other"] == 1
    assert "reset by 10.0.0.7:51123" not in stats.connections_closed
