"""fastjson's dialect: what Java writes, what it also reads, and what nobody may make us do."""

import json
from typing import Any

import pytest

from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.lenient_json import DEPTH_MAX, FrozenObject, dumps, freeze, loads
from tests.protocol.message_vectors import FRAMES, STORE

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "T"}


def refused(data: bytes | str) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        loads(data)
    assert caught.value.response_code == ResponseCode.SYSTEM_ERROR
    assert len(caught.value.remark) < 1024
    assert caught.value.remark.isascii()
    return caught.value.remark


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [1, -2, 0, {"b": None}], "c": True, "d": False, "e": "", "f": 1.5, "g": -1e-5},
        "text",
        9223372036854775807,
        '"\\/\b\f\n\r\t\x00\x7f é\u2028\U0001f600',
        {"k" * 1000: ["v" * 1000]},
        [[[[[[]]]]]],
    ],
)
@pytest.mark.parametrize("form", [{}, {"indent": 2}, {"ensure_ascii": False}])
def test_json_proper_is_read_as_such(value: Any, form: dict[str, Any]) -> None:
    text = json.dumps(value, **form)
    assert loads(text) == value
    assert loads(text.encode()) == value
    assert json.loads(dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ("{-1:2}", {"-1": 2}),
        ("{0:7,1:4\n\t\t},".rstrip(","), {"0": 7, "1": 4}),
        ("{'a':'b\"c'}", {"a": 'b"c'}),
        ('{a:1,$b_2:2,"c":3}', {"a": 1, "$b_2": 2, "c": 3}),
        ("[1,,2,]", [1, 2]),
        ("{,a:1,,b:2,}", {"a": 1, "b": 2}),
        (r"'\'\x41\v\0\7'", "'A\v\x00\x07"),
        ("[true,false,null,undefined]", [True, False, None, None]),
        ('"raw\nline\tand \x01"', "raw\nline\tand \x01"),
        ("[01,-0,1.,5e2]", [1, 0, 1.0, 500.0]),
        ("\ufeff[1]", [1]),
        (" \t\r\n[ 1 , 2 ]\f\b ", [1, 2]),
        ('{"a":1,"a":2}', {"a": 2}),
        ('{"true":1,true:2}', {"true": 2}),
    ],
)
def test_the_dialect(text: str, value: Any) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


def test_objects_as_keys() -> None:
    text = '{{"brokerName":"b","queueId":0,"topic":"T"}:5,{topic:"T",queueId:1,brokerName:"b"}:6}'
    table = loads(text)
    assert table == {freeze(QUEUE): 5, freeze({**QUEUE, "queueId": 1}): 6}
    first = next(iter(table))
    assert isinstance(first, FrozenObject)
    assert first.as_dict() == QUEUE
    assert dumps(table).decode() == text.replace(
        '{topic:"T",queueId:1,brokerName:"b"}', '{"brokerName":"b","queueId":1,"topic":"T"}'
    )


@pytest.mark.parametrize("text", ["{{a:[1]}:1}", "{{a:{b:1}}:1}", "{[1]:1}", "{{}", "{{}}"])
def test_a_key_is_text_or_a_flat_object(text: str) -> None:
    refused(text)


def test_the_golden_body_with_object_keys() -> None:
    data = bytes.fromhex(FRAMES["topic_stats_body"]["hex"])
    table = loads(data)["offsetTable"]
    pairs = [[queue.as_dict(), stats] for queue, stats in table.items()]
    assert pairs == FRAMES["topic_stats_body"]["decoded"]["offsetTable"]
    assert dumps(loads(data)) == data


@pytest.mark.parametrize("name", ["consumerOffset", "delayOffset", "consumerFilter"])
def test_the_golden_configuration_files(name: str) -> None:
    text = STORE["configFiles"][name]
    assert loads(text) == json.loads(dumps(loads(text)))


def test_nulls_can_be_left_out() -> None:
    text = '{"a":null,"b":[null,{"c":null}]}'
    assert loads(text) == {"a": None, "b": [None, {"c": None}]}
    assert loads(text, keep_nulls=False) == {"b": [None, {}]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\ufeff",
        "{",
        "[",
        "}",
        "]",
        "{]",
        "[}",
        "[1",
        "[1 2]",
        '{"a"}',
        '{"a":}',
        '{"a" 1}',
        '{"a":1 "b":2}',
        '{"a":1}}',
        "[1]x",
        "[1][2]",
        "nul",
        "truely",
        "NaN",
        "-NaN",
        "Infinity",
        "-",
        "+1",
        ".5",
        "1e",
        "1e999",
        "-1e999",
        "0x10",
        "1_000",
        "\u0661",
        "{\u0661:1}",
        "/* x */ 1",
        "// x\n1",
        "new Date(1)",
        'Set["a"]',
        '"unfinished',
        "'unfinished",
        "\"mixed'",
        '"\\',
        '"\\"',
        '"\\q"',
        '"\\u12"',
        '"\\u+123"',
        '"\\x4"',
        '"\\ud800"',
        '"\\ud800x"',
        '"\\udc00\\ud800"',
        "1;",
        "\x00",
    ],
)
def test_what_is_not_even_the_dialect_is_refused(text: str) -> None:
    refused(text)
    refused(text.encode())


@pytest.mark.parametrize("data", [b"\xff", b'"\xc0\x80"', b'"\xed\xa0\x80"', b'{"a":"\xe9"}'])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    refused(data)


def test_escaped_surrogate_pairs_are_one_character() -> None:
    assert loads(r'"\ud83d\ude00 \u00e9"') == "\U0001f600 é"


@pytest.mark.parametrize("opening", ["[", '{"a":', "{{", "{a:[", "{", '["",'])
def test_a_million_brackets_stop_at_the_depth_limit(opening: str) -> None:
    remark = refused(opening * 1_000_000)
    assert "too deep" in remark or opening == "{{" or opening == "{"
    place = int(remark.split(" at ")[1].split(",")[0])
    assert place <= (DEPTH_MAX + 1) * len(opening)


def test_the_depth_limit() -> None:
    assert loads("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    refused("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))


@pytest.mark.parametrize("text", ["9" * 200_000, "0." + "3" * 200_000, "{" + "7" * 200_000 + ":1}"])
def test_numbers_of_200_000_digits_are_refused(text: str) -> None:
    refused(text)


def test_the_count_of_values_is_limited() -> None:
    assert len(loads("[" + "1," * 49_999 + "]")) == 49_999
    refused("[" + "1," * 50_000 + "]")
    assert loads("[1,1]", node_count_max=3)
    with pytest.raises(RemoteProtocolError):
        loads("[1,1]", node_count_max=2)


def test_references_are_replaced_by_what_they_point_at() -> None:
    text = (
        '{"consumerDataSet":[{"subscriptionDataSet":[{"topic":"T"}]},'
        '{"subscriptionDataSet":[{"$ref":"$.consumerDataSet[0].subscriptionDataSet[0]"}]}]}'
    )
    same = [{"topic": "T"}]
    assert loads(text) == {"consumerDataSet": [{"subscriptionDataSet": same}] * 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"a":1},{"$ref":"$[0]"}]', [{"a": 1}, {"a": 1}]),
        ('{"x":{"$ref":"$.y"},"y":[1]}', {"x": [1], "y": [1]}),
        ('{"x":{"$ref":"$.y"},"y":{"$ref":"$.z"},"z":3}', {"x": 3, "y": 3, "z": 3}),
        (r'{"a.b":{"c":1},"d":{"$ref":"$.a\\.b.c"}}', {"a.b": {"c": 1}, "d": 1}),
        ('{"a b":[7],"d":{"$ref":"$[\'a b\'][0]"}}', {"a b": [7], "d": 7}),
        ('{"%RETRY%g":[7],d:{$ref:"$.%RETRY%g[0]"}}', {"%RETRY%g": [7], "d": 7}),
        ('{"$ref":"$.a","a":1}', {"$ref": "$.a", "a": 1}),
        ('{"x":{"$ref":5}}', {"x": {"$ref": 5}}),
    ],
)
def test_paths(text: str, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"$ref":"$"}',
        '{"$ref":"@"}',
        '{"a":{"$ref":"$"}}',
        '{"a":{"$ref":"@"}}',
        '{"a":[{"$ref":".."}]}',
        '{"a":{"$ref":"$.a"}}',
        '{"a":{"b":{"$ref":"$.a"}}}',
        '{"a":[{"$ref":"$.b"}],"b":[{"$ref":"$.a"}]}',
        '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        '{"a":{"$ref":"$.nothing"}}',
        '{"a":{"$ref":"$.b[1]"},"b":[0]}',
        '{"a":{"$ref":"$.b.c"},"b":5}',
        '{"a":{"$ref":"$b"},"b":5}',
        '{"a":{"$ref":"$.b[-1]"},"b":[5]}',
        '{"a":{"$ref":"$.b["},"b":[5]}',
        '{"a":{"$ref":"b"},"b":5}',
        '{"a":{"$ref":""}}',
        '{"a":{"$ref":"$' + ".b" * 1000 + '"}}',
    ],
)
def test_references_that_lead_nowhere_or_round_are_refused(text: str) -> None:
    refused(text)


def test_references_cannot_multiply_without_end() -> None:
    """Forty lines of doubling: a tree of a trillion values, if they were spelled out."""
    lines = ['"x0":[1,2]']
    lines += [f'"x{n}":[{{"$ref":"$.x{n - 1}"}},{{"$ref":"$.x{n - 1}"}}]' for n in range(1, 40)]
    assert "too many" in refused("{" + ",".join(lines) + "}")


@pytest.mark.parametrize("step", [1, -1])
def test_references_cannot_dig_deeper_than_brackets(step: int) -> None:
    """Each value one level above the next, written forwards and backwards."""
    lines = [f'"x{n}":[{{"$ref":"$.x{n + step}"}}]' for n in range(1, 5000)]
    lines += ['"x0":1', '"x5000":1']
    assert "too deep" in refused("{" + ",".join(lines) + "}")


def test_chains_of_references_are_bounded() -> None:
    chain = [f'"x{n}":{{"$ref":"$.x{n + 1}"}}' for n in range(30)] + ['"x30":1']
    assert loads("{" + ",".join(chain) + "}")["x0"] == 1
    chain = [f'"x{n}":{{"$ref":"$.x{n + 1}"}}' for n in range(20_000)] + ['"x20000":1']
    refused("{" + ",".join(chain) + "}")
    deep = '"d":' + "[" * 40 + "1" + "]" * 40
    paths = ",".join(f'{{"$ref":"$.d{"[0]" * 40}"}}' for _ in range(2000))
    assert "too many references" in refused("{" + deep + ',"a":[' + paths + "]}")


def test_every_cut_of_a_body_is_refused() -> None:
    data = bytes.fromhex(FRAMES["topic_stats_body"]["hex"])
    for size in range(len(data)):
        refused(data[:size])


def test_limits_are_what_the_docs_say() -> None:
    assert lenient_json.NODE_COUNT_MAX == 50_000
