"""What users see of the SDK: the names of its objects, and every type that their methods name."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import typing
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from skylarkmq import client
from skylarkmq.client import admin, sync
from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.consumer.config import ConsumerConfig

PUBLIC = {
    "Admin": "access_files access_rules allow_writes broker_config broker_progress"
    " broker_runtime clone_offsets cluster cluster_health cluster_status"
    " consume_directly consumers create_group create_topic dead_letters"
    " deduplication_windows delayed"
    " delete_account delete_group delete_topic describe_group describe_topic"
    " drain drain_progress failover find_copy keep_text kept_texts list_groups list_topics"
    " member_info message"
    " name_server_config open_transactions plan_copy producer_groups producers progress"
    " put_account query ranges redrive_dead_letter reset_offset scan"
    " set_broker_config set_name_server_config set_white_list start"
    " statistic stop stop_writes switch_over topic_attributes topic_groups topic_route trace"
    " track"
    " undrain update_group update_topic",
    "Client": "client_id namespace start stop",
    "Consumer": "assign assignment begin_offsets buffered commit committed end_offsets getmany"
    " getone group lag offsets_for_time pause paused position reply resume run seek"
    " seek_to_beginning seek_to_end seek_to_time start stop subscribe unsubscribe",
    "PeekReader": "start stop",
    "PoppedMessage": "body body_crc born_at born_host broker_name commit_log_offset"
    " delivery_attempt flag keys msg_id offset_msg_id origin_topic priority properties queue"
    " queue_offset reconsume_times sharding_key size store_host stored stored_at sys_flag tags"
    " to_json topic",
    "Producer": "cancel flush in_flight_count queues reply request request_nowait room send"
    " send_batch send_many send_nowait send_oneway start stats stop transaction",
    "ReceivedMessage": "ack body body_crc born_at born_host commit_log_offset dead_letter extend"
    " flag keys msg_id nack offset_msg_id origin_topic priority process properties queue"
    " queue_offset reconsume_times sharding_key size store_host stored stored_at sys_flag tags"
    " to_json topic",
    "SimpleConsumer": "ack change_invisible_duration dead_letter group receive start stop subscribe"
    " unsubscribe",
    "StoredMessage": "body body_crc born_at born_host commit_log_offset flag keys msg_id"
    " offset_msg_id origin_topic priority properties queue queue_offset reconsume_times"
    " sharding_key size store_host stored stored_at sys_flag tags to_json topic",
    "Transaction": "commit result rollback transaction_id unknown",
}
LIBRARIES = {
    "AbstractAsyncContextManager", "Any", "Awaitable", "Callable", "Collection",
    "CollectorRegistry", "Coroutine", "Iterable", "Iterator", "Literal", "Mapping", "Path",
    "Random", "Self", "Sequence", "TracebackType", "TracerProvider", "asyncio", "datetime",
    "timedelta",
}  # fmt: skip
MADE_BY_USERS = {
    "AdminBase", "Client", "Consumer", "OnClient", "PeekReader", "Producer", "SimpleConsumer",
}  # fmt: skip
"""The constructors of the other objects are for the SDK itself."""
NAMES_MAX = 60
PAGE = Path(__file__).parents[2] / "docs" / "sdk" / "names.md"
MODULE = re.compile(r"^\| `(skylarkmq\.[a-z_.]+)` \| (.*) \|$", re.MULTILINE)
TYPES = {
    name: module
    for module, names in MODULE.findall(PAGE.read_text("utf-8"))
    for name in re.findall(r"`(\w+)`", names)
}
"""Of the page: what signatures name and `skylarkmq.client` does not have, with its module."""
CLASSES = {
    name: each
    for module in (client, admin)
    for name, each in vars(module).items()
    if name in module.__all__ and inspect.isclass(each)
}


@pytest.mark.parametrize("name", PUBLIC)
def test_an_object_shows_what_is_meant_for_users(name: str) -> None:
    shown = {each for each in dir(getattr(client, name)) if not each.startswith("_")}
    assert shown == set(PUBLIC[name].split())


def test_the_page_of_names_has_every_name_and_no_other() -> None:
    first = PAGE.read_text("utf-8").partition("Signatures name")[0]
    rows = [line.split("|")[1] for line in first.splitlines() if line.startswith("| `")]
    found = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(found) == sorted(client.__all__)
    assert len(found) <= NAMES_MAX


@pytest.mark.parametrize("name", TYPES)
def test_a_type_of_signatures_is_where_the_page_says(name: str) -> None:
    assert hasattr(importlib.import_module(TYPES[name]), name)
    named = {
        node.id
        for kind in CLASSES.values()
        for _, text in annotations(kind)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
    }
    assert name in named | {"ConsistentHash", "Clock"}, "no signature names it"


def annotations(kind: type) -> Iterator[tuple[str, str]]:
    """Return the annotations of a class and of its public methods, with where each stands."""
    for base in kind.__mro__:
        if not base.__module__.startswith("skylarkmq."):
            continue
        for name, member in vars(base).items():
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            made = name == "__init__" and base.__name__ in MADE_BY_USERS
            if (name.startswith("_") and not made) or not inspect.isfunction(function):
                continue
            for text in function.__annotations__.values():
                if isinstance(text, str):
                    yield f"{base.__name__}.{name}", text


def test_type_hints_of_a_constructor_are_no_error() -> None:
    for kind in (client.Client, client.Producer, client.Consumer):
        assert not typing.get_type_hints(kind.__init__)


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_every_type_that_a_method_names_can_be_imported(kind: type) -> None:
    known = LIBRARIES | set(client.__all__) | set(admin.__all__) | set(dir(builtins)) | set(TYPES)
    unknown = {
        (where, node.id)
        for where, text in annotations(kind)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id not in known
    }
    assert not unknown


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer", "SimpleConsumer"])
def test_help_shows_each_setting_and_the_class_says_what_it_means(name: str) -> None:
    kind = getattr(client, name)
    settings = [*inspect.signature(kind).parameters.values()]
    assert all(each.annotation is not each.empty for each in settings)
    kinds = {each.kind for each in settings}
    assert inspect.Parameter.VAR_KEYWORD not in kinds, "plain keywords"
    told = set(re.findall(r"[a-z_]+", inspect.getdoc(kind).partition("Args:")[2]))
    assert {each.name for each in settings} <= told
    assert inspect.signature(getattr(sync, name)) == inspect.signature(kind)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: client.Producer(retrys=3), "Producer has no setting 'retrys'; retries?"),
        (lambda: client.Consumer("t", gruop="g"), "Consumer has no setting 'gruop'; group?"),
        (lambda: client.Client("a:1", xyz=1), "Client has no setting 'xyz'$"),
        (
            lambda: client.Producer(start_timeout=1),
            "Producer has no setting 'start_timeout'; start_timeout is a setting of Client$",
        ),
        (lambda: client.Client(unanswered={}), "'unanswered'; unanswered is a setting of Admin$"),
        (
            lambda: client.Consumer("t", group="g", stop_timeout=1),
            "'stop_timeout'; stop_timeout is a setting of Consumer.run$",
        ),
        (lambda: client.Consumer(topic="t", group="g"), "no setting 'topic'; topics?"),
        (lambda: client.Consumer(topics="t", group="g"), "topics come first, without their name$"),
        (lambda: client.Producer(timeout=1), "'timeout'; send_timeout or try_timeout?"),
        (
            lambda: client.Credentials("a", secret="b"),
            "Credentials has no setting 'secret'; secret_key?",
        ),
        (lambda: client.Consumer("t"), "Consumer: missing a required argument: 'group'"),
        (lambda: client.Producer("a:1"), "Producer: too many positional arguments"),
        (lambda: sync.Producer(retrys=3), "Producer has no setting 'retrys'; retries?"),
        (lambda: client.SimpleConsumer("t", gruop="g"), "SimpleConsumer has no setting 'gruop'"),
        (lambda: client.PeekReader("t", selctor=1), "PeekReader has no setting 'selctor'; selec"),
        (lambda: client.Admin(timeuot=1), "Admin has no setting 'timeuot'; timeout?"),
        (lambda: sync.Admin(timeuot=1), "Admin has no setting 'timeuot'; timeout?"),
        (
            lambda: client.Producer(send_timeout="3"),
            "Producer: send_timeout is seconds or a timedelta, not '3'",
        ),
        (lambda: client.Producer(retries=True), "Producer: retries is a whole number, not True"),
        (lambda: client.Producer(retry_on=14), "Producer: retry_on is a list, not 14"),
        (lambda: client.Producer(group=None), "Producer: group is text, not None"),
        (lambda: client.Client(["a:1"]), "Client: namesrv_addr is text or None, not ['a:1']"),
        (lambda: client.Client("a:1", credentials=("a", "b")), "credentials is Credentials(acc"),
        (
            lambda: client.Consumer("t", group="g", orderly="no"),
            "Consumer: orderly is True or False, not 'no'",
        ),
        (
            lambda: client.Consumer("t", group="g", retry_delays=5),
            "Consumer: retry_delays is a list, not 5",
        ),
        (
            lambda: client.Consumer("t", group="g", retry_delays=[1, "x"]),
            "each of retry_delays is seconds or a timedelta, not 'x'",
        ),
        (
            lambda: sync.Consumer("t", group="g", commit_interval="1"),
            "Consumer: commit_interval is seconds or a timedelta, not '1'",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_the_right_one(make: Any, text: str) -> None:
    pattern = re.escape(text.removesuffix("$")) + ("$" if text.endswith("$") else "")
    with pytest.raises(TypeError, match=pattern):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda it: client.Client("a:1", request_timeout=it),
        lambda it: client.Producer(send_timeout=it),
        lambda it: client.Consumer("t", group="g", commit_interval=it),
        lambda it: client.Consumer("t", group="g", retry_delays=[it]),
        lambda it: client.Admin(timeout=it),
        lambda it: client.SimpleConsumer("t", group="g", await_duration=it),
    ],
)
def test_a_duration_is_seconds_or_a_timedelta_and_never_nan(make: Any) -> None:
    make(2)
    make(timedelta(seconds=2))
    with pytest.raises(ValueError, match="is a number, not NaN"):
        make(float("nan"))


def test_durations_are_kept_in_seconds() -> None:
    config = ProducerConfig(send_timeout=timedelta(milliseconds=1500), try_timeout=1)
    assert (config.send_timeout_s, config.try_timeout_s) == (1.5, 1)
    assert (
        ConsumerConfig("t", group="g", commit_interval=timedelta(hours=1)).commit_interval == 3600
    )
