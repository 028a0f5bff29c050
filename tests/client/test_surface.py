"""What users see of the SDK: the names of its objects, and every type that their methods name."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any, is_typeddict

import pytest

from skylarkmq import client
from skylarkmq.client import admin, config

PUBLIC = {
    "Admin": "access_files access_rules allow_writes broker_config broker_progress"
    " broker_runtime clone_offsets cluster cluster_health cluster_status"
    " consume_directly consumers create_group create_topic dead_letters"
    " deduplication_windows delayed"
    " delete_account delete_group delete_topic describe_group describe_topic"
    " drain drain_progress failover find_copy keep_text kept_texts list_groups list_topics"
    " member_info message"
    " name_server_config open_transactions plan_copy producer_groups producers progress"
    " put_account query redrive_dead_letter reset_offset scan"
    " set_broker_config set_name_server_config set_white_list skip_accumulated start"
    " statistic stop stop_writes switch_over topic_groups topic_route trace undrain"
    " update_group update_topic",
    "Client": "client_id namespace start stop",
    "Consumer": "assign assignment begin_offsets buffered commit committed end_offsets getmany"
    " getone group lag offsets_for_time pause paused position reply resume run seek"
    " seek_to_beginning seek_to_end seek_to_time start stop subscribe unsubscribe",
    "PeekReader": "start stop",
    "PoppedMessage": "body body_crc born_at born_host broker_name commit_log_offset"
    " delivery_attempt flag keys msg_id offset_msg_id origin_topic properties queue queue_offset"
    " reconsume_times sharding_key size store_host stored stored_at sys_flag tags to_json topic",
    "Producer": "cancel flush in_flight_count queues reply request request_nowait room send"
    " send_batch send_many send_nowait send_oneway start stats stop transaction",
    "ReceivedMessage": "ack body body_crc born_at born_host commit_log_offset dead_letter extend"
    " flag keys msg_id nack offset_msg_id origin_topic process properties queue queue_offset"
    " reconsume_times sharding_key size store_host stored stored_at sys_flag tags to_json topic",
    "SimpleConsumer": "ack change_invisible_duration group receive start stop subscribe"
    " unsubscribe",
    "StoredMessage": "body body_crc born_at born_host commit_log_offset flag keys msg_id"
    " offset_msg_id origin_topic properties queue queue_offset reconsume_times sharding_key size"
    " store_host stored stored_at sys_flag tags to_json topic",
    "Transaction": "commit result rollback transaction_id unknown",
}
LIBRARIES = {
    "AbstractAsyncContextManager", "Any", "Awaitable", "Callable", "Collection",
    "CollectorRegistry", "Iterable", "Iterator", "Literal", "Mapping", "Path", "Random", "Required",
    "Self", "Sequence", "TracebackType", "TracerProvider", "Unpack", "asyncio", "datetime",
    "timedelta",
}  # fmt: skip
MADE_BY_USERS = {
    "AdminBase", "Client", "Consumer", "OnClient", "PeekReader", "Producer", "SimpleConsumer",
}  # fmt: skip
"""The constructors of the other objects are for the SDK itself."""
SEAMS = {"Clock", "Network"}
"""What tests hand in; who writes one of his own looks at its module."""
CLASSES = {
    name: each
    for module in (client, admin)
    for name, each in vars(module).items()
    if name in module.__all__ and inspect.isclass(each) and name not in SEAMS
}


@pytest.mark.parametrize("name", PUBLIC)
def test_an_object_shows_what_is_meant_for_users(name: str) -> None:
    shown = {each for each in dir(getattr(client, name)) if not each.startswith("_")}
    assert shown == set(PUBLIC[name].split())


def annotations(kind: type) -> Iterator[tuple[str, str]]:
    """Return the annotations of a class and of its public methods, with where each stands."""
    for name, each in vars(kind).get("__annotations__", {}).items():
        if is_typeddict(kind):
            yield f"{kind.__name__}.{name}", each.__forward_arg__
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


@pytest.mark.parametrize("kind", CLASSES.values(), ids=CLASSES)
def test_every_type_that_a_method_names_can_be_imported(kind: type) -> None:
    known = LIBRARIES | set(client.__all__) | set(admin.__all__) | set(dir(builtins))
    unknown = {
        (where, node.id)
        for where, text in annotations(kind)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id not in known
    }
    assert not unknown


@pytest.mark.parametrize("name", ["Client", "Producer", "Consumer"])
def test_type_checkers_know_each_setting_by_its_type(name: str) -> None:
    keywords = vars(config)[f"{name}Settings"].__annotations__
    checked: Any = vars(config)[f"{name}Config"]
    types = {field.name: field.type for field in dataclasses.fields(checked)}
    types.pop("namesrv_addr", None)  # the first argument of Client
    seen = {name: each.__forward_arg__ for name, each in keywords.items()}
    assert seen == types | ({"group": "Required[str]"} if name == "Consumer" else {})
    assert set(types) < set(inspect.signature(getattr(client, name)).parameters), "help() shows it"
