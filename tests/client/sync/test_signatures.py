"""The facade has the names and arguments of the asynchronous SDK, and answers of the same types.

Its methods are made when it is loaded; what type checkers read instead is generated and compared.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from skylarkmq import client
from skylarkmq.client import sync
from skylarkmq.client.admin.reading import MessageScan
from skylarkmq.client.consumer.peek_reader import PeekReader
from skylarkmq.client.producer.transaction import Transaction
from tests.client.sync.stub import STUB, generated

PAIRS = {
    client.Client: sync.Client,
    client.Producer: sync.Producer,
    client.Consumer: sync.Consumer,
    PeekReader: sync.PeekReader,
    client.SimpleConsumer: sync.SimpleConsumer,
    client.Admin: sync.Admin,
    client.ReceivedMessage: sync.ReceivedMessage,
    Transaction: sync.Transaction,
    MessageScan: sync.MessageScan,
}
ADDED = {"Transaction": {"state"}}  # an attribute there
BLOCKING = {
    "asyncio.Future[Reply]": "concurrent.futures.Future[Reply]",
    "asyncio.Future[SendResult]": "concurrent.futures.Future[SendResult]",
    "AbstractAsyncContextManager[ReceivedMessage]": "Generator[ReceivedMessage]",
    "Coroutine[Any, Any, None]": "None",
}


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def shape(member: Any) -> tuple[list[tuple[str, str, object, object]], object]:
    """Parameters by name, kind, default and type; and the type of the answer."""
    if isinstance(member, property):
        member = member.fget
    signature = inspect.signature(member)
    parameters = [
        (each.name, each.kind.name, each.default, each.annotation)
        for each in signature.parameters.values()
    ]
    answer = signature.return_annotation
    return parameters, BLOCKING.get(answer, answer)


@pytest.mark.parametrize("waits", PAIRS, ids=lambda cls: cls.__name__)
def test_names(waits: type) -> None:
    name = waits.__name__
    assert public(PAIRS[waits]) - ADDED.get(name, set()) == public(waits)


@pytest.mark.parametrize("waits", PAIRS, ids=lambda cls: cls.__name__)
def test_signatures(waits: type) -> None:
    blocks = PAIRS[waits]
    for name in sorted(public(waits) & public(blocks)):
        if not inspect.isdatadescriptor(getattr(waits, name)) or isinstance(
            getattr(waits, name), property
        ):
            assert shape(getattr(blocks, name)) == shape(getattr(waits, name)), name


@pytest.mark.parametrize(
    "waits",
    [
        client.Client,
        client.Producer,
        client.Consumer,
        client.SimpleConsumer,
        client.Admin,
        PeekReader,
    ],
    ids=lambda cls: cls.__name__,
)
def test_settings(waits: type) -> None:
    assert shape(PAIRS[waits].__init__) == shape(waits.__init__)


@pytest.mark.parametrize("blocks", PAIRS.values(), ids=lambda cls: cls.__name__)
def test_nothing_is_to_be_awaited(blocks: type) -> None:
    for name in public(blocks):
        assert not inspect.iscoroutinefunction(getattr(blocks, name)), name


def test_type_checkers_see_the_same() -> None:
    assert STUB.read_text(encoding="utf-8") == generated(), "python -m tests.client.sync.stub"
