"""Every code that a server answers has a row, and the row names fields that the handler reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from skylarkmq.broker.access.rights import BROKER, NAME_SERVER, Level, Row
from skylarkmq.broker.controller import BrokerController
from tests.support.live_broker import live_broker

OF_OTHERS = {"group SUB, topic SUB", "group SUB"}


def codes_of(controller: BrokerController) -> tuple[frozenset[int], frozenset[int]]:
    """What broker and name server answer."""
    router, namesrv = controller.router, controller.namesrv
    assert router is not None and namesrv is not None
    return router.codes, namesrv._router.codes


async def test_every_code_that_is_answered_has_a_row(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as controller:
        broker, namesrv = codes_of(controller)
    assert broker, namesrv
    assert broker - BROKER.keys() == set()
    assert namesrv - NAME_SERVER.keys() == set()


@pytest.mark.parametrize("table", [BROKER, NAME_SERVER], ids=["broker", "name server"])
def test_rows_say_what_they_need(table: Mapping[int, Row]) -> None:
    for code, row in table.items():
        assert row.code == code
        assert row.told
        if row.level is not Level.ACCOUNT:
            assert not row.resources
        assert not row.is_change or row.level is Level.ADMIN
