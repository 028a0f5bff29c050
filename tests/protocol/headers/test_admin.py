"""Headers and bodies of administrators: names on the wire, what may be left out."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.bodies.topic import ConsumeQueueData, QueryConsumeQueueResponseBody
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers import route, topic
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields

FIELDS = [
    (topic.DeleteTopicRequestHeader, {"topic": "T"}),
    (topic.GetBrokerConfigResponseHeader, {"version": '{"counter":1,"timestamp":2}'}),
    (
        topic.QueryConsumeQueueRequestHeader,
        {"topic": "T", "queueId": "1", "index": "5", "count": "3", "consumerGroup": "g"},
    ),
    (route.PutKVConfigRequestHeader, {"namespace": "N", "key": "k", "value": ""}),
    (route.GetKVConfigRequestHeader, {"namespace": "N", "key": "k"}),
    (route.GetKVConfigResponseHeader, {"value": "v"}),
    (route.DeleteKVConfigRequestHeader, {"namespace": "N", "key": "k"}),
    (route.GetKVListByNamespaceRequestHeader, {"namespace": "N"}),
    (route.DeleteTopicFromNamesrvRequestHeader, {"topic": "T", "clusterName": "C"}),
    (route.GetTopicsByClusterRequestHeader, {"cluster": "C"}),
    (route.WipeWritePermOfBrokerRequestHeader, {"brokerName": "b"}),
    (route.WipeWritePermOfBrokerResponseHeader, {"wipeTopicCount": "3"}),
    (route.AddWritePermOfBrokerRequestHeader, {"brokerName": "b"}),
    (route.AddWritePermOfBrokerResponseHeader, {"addTopicCount": "3"}),
]
OPTIONAL = {"consumerGroup", "clusterName"}


@pytest.mark.parametrize(("header", "fields"), FIELDS)
def test_round_trip(header: type, fields: dict[str, str]) -> None:
    assert encode_fields(decode_fields(header, fields)) == fields


@pytest.mark.parametrize(("header", "fields"), FIELDS)
def test_what_must_be_there(header: type, fields: dict[str, str]) -> None:
    for name in fields:
        rest = {key: value for key, value in fields.items() if key != name}
        if name in OPTIONAL or header is route.GetKVConfigResponseHeader:
            decode_fields(header, rest)
        else:
            with pytest.raises(RemoteProtocolError, match=name):
                decode_fields(header, rest)


def test_units_of_a_queue() -> None:
    unit = ConsumeQueueData(eval=False, physic_offset=7, physic_size=5, tags_code=-3)
    body = QueryConsumeQueueResponseBody(max_queue_index=9, min_queue_index=2, queue_data=[unit])
    text = (
        b'{"maxQueueIndex":9,"minQueueIndex":2,"queueData":[{"eval":false,"physicOffset":7,'
        b'"physicSize":5,"tagsCode":-3}]}'
    )
    assert encode_body(body) == text
    assert decode_body(QueryConsumeQueueResponseBody, text) == body
