"""The source's options together: defaults, subjects, contradictions, and that they travel."""

from __future__ import annotations

import pickle

import pytest

from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.options import (
    SOURCE_OPTIONS,
    SUBJECTS,
    ReadSettings,
    SourceOptions,
    Subject,
)
from skylarkmq.spark.reading.positions import EARLIEST, LATEST
from skylarkmq.spark.settings import CONNECTION_OPTIONS, ConnectionSettings
from skylarkmq.spark.writing.sink_options import SINK_OPTIONS


def read(streaming: bool = True, **given: str) -> SourceOptions:
    given = {"nameServer": "n:1", **given}
    lower = {name.lower(): text for name, text in given.items()}  # as Spark has them
    return SourceOptions.from_options(lower, streaming=streaming)


def refusal(streaming: bool = True, **given: str) -> str:
    with pytest.raises(OptionError) as error:
        read(streaming, **given)
    return str(error.value)


def test_defaults() -> None:
    options = read(topic="T")
    assert options.subject == Subject(topics=("T",))
    assert (options.starting, options.ending) == (LATEST, LATEST)
    assert options.reading.fail_on_data_loss and not options.commit_offsets
    assert options.max_offsets_per_trigger is options.min_partitions is None
    assert (options.offset_cache_s, options.metadata_refresh_s) == (0.1, 30.0)
    assert options.reading.tags is None and options.reading.subscription("T") is None
    assert read(False, topic="T").starting == EARLIEST


def test_they_travel_without_secrets_in_their_text() -> None:
    options = read(topic="T", accessKey="ak", secretKey="hush", securityToken="quiet")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options) and "quiet" not in repr(options)


def test_subjects() -> None:
    assert read(topic=" b, a,b ").subject.topics == ("b", "a")
    assert read(subscribe="a").subject.topics == ("a",)
    assert read(subscribePattern="a.*").subject == Subject(pattern="a.*")
    assigned = read(assign='{"T":{"b":[1,0,1]}}').subject.queues
    assert assigned == (QueueKey("T", "b", 0), QueueKey("T", "b", 1))


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"T":[]}', '{"T":{}}', '{"T":{"b":{}}}', '{"T":{"b":[]}}', '{"T":{"b":[-1]}}',
     '{"T":{"b":["0"]}}', '{"T":{"b":[true]}}', '{"T":{"b":[2147483648]}}', '{"a b":{"b":[0]}}'],
)  # fmt: skip
def test_wrong_assignments(text: str) -> None:
    assert "assign" in refusal(assign=text)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, "topic, subscribe, subscribePattern or assign is needed"),
        ({"subscribePattern": "("}, "subscribePattern is a Python regular expression"),
        ({"topic": "a", "subscribePattern": "b"}, "topic and subscribePattern exclude each other"),
        ({"topic": "a/b"}, "'a/b' is no topic"),
        ({"topic": "a", "brokers": "h:1"}, "which option nameServer names"),
        ({"topic": "a", "endingOffsets": "latest"}, "a stream has no end"),
        ({"topic": "a", "maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({"topic": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "contradict"),
        ({"topic": "a", "minPartitions": "9", "maxPartitions": "8"}, "contradict"),
        ({"topic": "a", "maxPartitions": "8", "maxRecordsPerPartition": "9"}, "bounds the size"),
        ({"topic": "a", "maxTriggerDelay": "1s"}, "goes with minOffsetsPerTrigger"),
        ({"topic": "a", "startingOffsets": "group"}, "consumerGroup is missing"),
        ({"topic": "a", "subExpression": "n > 3"}, "expressionType=SQL92"),
        ({"topic": "a", "subExpression": " || "}, "at least one tag"),
        ({"topic": "a", "expressionType": "SQL92"}, "subExpression is missing"),
        (
            {"topic": "a", "expressionType": "SQL92", "subExpression": "n > 3 ANDD b = 1"},
            "option subExpression: 'ANDD' stands at character 7",
        ),
        ({"topic": "a", "consumerGroup": "a b"}, "is no group"),
        ({"topic": "a", "groupIdPrefix": "x" * 200}, "groupIdPrefix"),
        ({"topic": "a", "producerGroup": "g"}, "it belongs to the sink"),
        ({"topic": "a", "path": "/x"}, "the topic goes into option topic"),
        ({"topic": "a", "kafka.bootstrap.servers": "h:1"}, "nameServer"),
        ({"topic": "a", "maxOffsetPerTrigger": "8"}, "did you mean maxOffsetsPerTrigger?"),
    ],
)
def test_refused(given: dict[str, str], wanted: str) -> None:
    assert wanted in refusal(**given)


def test_on_corruption() -> None:
    assert read(topic="T").reading.on_corruption == "fail"
    assert read(topic="T", onCorruption="SKIP").reading.on_corruption == "skip"
    assert "one of fail, skip, raw" in refusal(topic="T", onCorruption="stop")


def test_keys() -> None:
    assert read(False, topic="T", keys=" a, b,a").keys == ("a", "b")
    assert read(False, topic="T").keys == ()
    assert "'a b' holds a blank" in refusal(False, topic="T", keys="c,a b")
    assert "is for batches" in refusal(topic="T", keys="a")


def test_refused_in_a_batch() -> None:
    assert "subExpression and keys" in refusal(False, topic="a", filterPushdown="true")
    assert "is for streams" in refusal(False, topic="a", maxOffsetsPerTrigger="8")


def test_filters() -> None:
    tags = read(topic="T", subExpression="A||B").reading
    assert tags.tags == {"A", "B"} and tags.filters
    sent = tags.subscription("T")
    assert sent is not None and sent.sub_string == "A || B" and sent.expression_type == "TAG"
    sql = read(topic="T", subExpression="n > 3", expressionType="sql92").reading
    assert sql.tags is None and sql.filters
    sent = sql.subscription("T")
    assert sent is not None and (sent.sub_string, sent.expression_type) == ("n > 3", "SQL92")
    assert sql.subscription("SCHEDULE_TOPIC_XXXX") is not None
    assert tags.subscription("SCHEDULE_TOPIC_XXXX") is None, "its tags codes are due times"
    everything = read(topic="T", subExpression="*").reading
    assert not everything.filters and everything.subscription("T") is None


def test_groups() -> None:
    one, same = read(topic="a,b").reading.group, read(topic="b,a", minPartitions="4").reading.group
    other = read(topic="a").reading.group
    assert one == same != other
    assert one.startswith("spark-skylarkmq-")
    assert read(topic="a", groupIdPrefix="mine").reading.group.startswith("mine-")
    named = read(topic="a", consumerGroup="g")
    assert named.reading.group == "g" and named.commit_offsets
    assert not read(topic="a", consumerGroup="g", commitOffsets="false").commit_offsets


def test_every_option_is_read() -> None:
    """An option that nobody reads would be accepted and do nothing."""
    import inspect

    from skylarkmq.spark import options, settings
    from skylarkmq.spark.reading import positions
    from skylarkmq.spark.writing import sink_options

    modules = (options, positions, settings, sink_options)
    source = "".join(inspect.getsource(module) for module in modules)
    for option in (*SOURCE_OPTIONS, *CONNECTION_OPTIONS, *SINK_OPTIONS):
        by_hand = option.read is None and option not in SUBJECTS
        assert source.count(f'"{option.name}"') >= (2 if by_hand else 1), option.name


def test_read_settings_alone() -> None:
    settings = ReadSettings(ConnectionSettings(name_servers=("n:1",)), "g")
    assert settings.tags is None and not settings.filters


def test_a_batch_commits_nothing() -> None:
    assert "commitOffsets is for streams" in refusal(False, topic="T", commitOffsets="true")
    assert not read(False, topic="T", commitOffsets="false").commit_offsets
    assert read(True, topic="T", consumerGroup="g").commit_offsets
