"""Options of the sink."""

import pickle

import pytest

from skylarkmq.client.send_result import SendStatus
from skylarkmq.protocol.compression import CompressionKind
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.writing.sink_options import SinkOptions, check_topic

BASE = {"nameserver": "127.0.0.1:9876"}


def read(**given: str) -> SinkOptions:
    return SinkOptions.from_options({**BASE, **given})


def test_defaults() -> None:
    options = read(checkpointLocation="/tmp/x")
    assert options.topic is None
    assert options.accepted == {SendStatus.SEND_OK}
    assert options.connection.name_servers == ("127.0.0.1:9876",)
    assert (options.batch_size, options.max_message_size) == (131_072, 4_194_304)


def test_all() -> None:
    options = read(
        topic="orders", producergroup="etl", idempotencycolumns="a, b,a",
        acceptstatus="flush_disk_timeout, SLAVE_NOT_AVAILABLE", maxmessagesize="1m",
        sendbatchbytes="0", sendbatchrows="5", sendsinflight="3", sendbytesinflight="64k",
        compression="zlib", compressover="1k", sendtimeoutms="7s",
    )  # fmt: skip
    assert options == SinkOptions(
        connection=options.connection, topic="orders", producer_group="etl", identity=("a", "b"),
        accepted=frozenset(
            {SendStatus.SEND_OK, SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE}
        ),
        max_message_size=1 << 20, batch_size=0, batch_count=5, requests_max=3,
        unacknowledged_size=65_536, compression=CompressionKind.ZLIB, compress_over=1024,
    )  # fmt: skip
    assert options.connection.request_timeout_s == 7
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tpoic": "x"}, "unknown option tpoic: did you mean topic"),
        ({"path": "orders"}, "option path.*a topic has no path"),
        ({"subscribe": "orders"}, "the sink's option is topic"),
        ({"startingOffsets": "earliest"}, "it belongs to the source"),
        ({"topic": "a,b"}, "names one topic"),
        ({"topic": "a b"}, "illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the broker"),
        ({"producerGroup": "a b"}, "option producerGroup: .*illegal"),
        ({"acceptStatus": "MAYBE"}, "acceptStatus is a list of SEND_OK, FLUSH_DISK_TIMEOUT"),
        ({"sendsInFlight": "0"}, "sendsInFlight is at least 1"),
        ({"sendBatchBytes": "8m"}, "sendBatchBytes is at most 4194304"),
        ({"maxMessageSize": "1g"}, "maxMessageSize is at most"),
        ({"compression": "rar"}, "compression is one of none, zlib, lz4, zstd"),
        ({"compressOver": "10"}, "needs option compression"),
    ],
)
def test_refused(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        read(**given)


def test_secrets_stay_inside() -> None:
    options = read(accesskey="the-account", secretkey="hunter22")
    assert "hunter22" not in repr(options)


def test_topics() -> None:
    assert check_topic("orders") is None
    assert check_topic("%RETRY%group") is None
    assert check_topic("") is not None
