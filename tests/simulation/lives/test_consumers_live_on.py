"""Consumers that live on while their log becomes shorter: who passes over what was acknowledged.

Each history of `histories.py` under each kind of consumer of `members.py`. When the consumer comes
back, the queue's new end is

    behind       below the position in the consumer's memory: its pull is told so
    caught up    above it: its pull is answered as if nothing had happened
"""

from __future__ import annotations

import itertools
from enum import Enum, auto
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet

from tests.simulation.lives.histories import (
    FIRST,
    HISTORIES,
    POSITION,
    SEEN,
    UNSEEN,
)
from tests.simulation.lives.members import GROUP, MEMBERS, NAME
from tests.support.broker_lives import BrokerLives
from tests.support.crash_disk import CrashDisk
from tests.support.delivery_history import DeliveryHistory


class Return(Enum):
    """How a consumer comes back to its broker."""

    LIVES_ON = auto()
    """It has waited, its positions in its memory."""
    ASKED_BEFORE = auto()
    """The same, and another client asked about the queue before."""
    STARTED_AGAIN = auto()
    """It was stopped before, and is a new one: its positions are where it keeps them."""
    STARTED_LATE = auto()
    """The same, after one more start of the broker, which knows that end of the queue alone."""


AGAIN_S: Final = 40.0
"""After this every consumer has come back, and has got what it will get."""
SAMPLE: Final = {
    Return.LIVES_ON: tuple(MEMBERS),
    Return.ASKED_BEFORE: ("clustering", "java"),
    Return.STARTED_AGAIN: ("clustering", "broadcasting"),
    Return.STARTED_LATE: ("broadcasting",),
}
"""Kinds that `make test` looks at, by how they come back; the others are fault tests."""
ENDS: Final = {"behind": POSITION - 1, "caught up": POSITION + 3}


async def live_through(
    history: str, kind: str, end: str, folder: Path, returns: Return
) -> DeliveryHistory:
    """One history with one consumer; what was acknowledged, and what it saw."""
    what, seen = HISTORIES[history], DeliveryHistory()
    lives = BrokerLives(seen)
    member = MEMBERS[kind](lives, folder / "offsets")
    await lives.boot(CrashDisk(), attributes=member.attributes)
    await member.start()
    await lives.send(*FIRST)
    await lives.keep_tables()
    copy = lives.life.disk.snapshot()
    if what.is_prompt:
        lives.hold_syncs()
    await lives.send(*SEEN)
    await lives.pump(0.5)
    assert {*FIRST, *SEEN} == set(member.seen()), "so its position is behind them"
    if not what.is_prompt:
        await lives.keep_tables()
    starts_again = returns in (Return.STARTED_AGAIN, Return.STARTED_LATE)
    if starts_again:
        await member.stop()
    lives.network.cut(NAME)
    await lives.send(*UNSEEN)
    await what.act(lives, copy, folder / "store")
    assert lives.end == what.end
    await send_again(lives, ENDS[end])
    if returns is Return.ASKED_BEFORE:
        await lives.ask_about_the_queue(GROUP)
    if returns is Return.STARTED_LATE:
        await lives.boot(lives.kill(), keeps="all")
    lives.network.mend(NAME)
    if starts_again:
        await member.start()
    await lives.pump(AGAIN_S)
    await lives.send("d0", "d1")
    await lives.pump(AGAIN_S)
    member.look()
    member.note_position()
    assert {"d0", "d1"} <= set(member.seen()), "it lives on"
    await member.stop()
    return seen


async def send_again(lives: BrokerLives, end: int) -> None:
    """What was never seen is sent once more under its keys, as by a producer that is not sure.

    Others follow until the queue has come to an end.
    """
    await lives.send(*UNSEEN)
    number = 0
    while lives.end < end:
        await lives.send(f"c{number}")
        number += 1


def cases(returns: Return) -> list[ParameterSet]:
    """Every history with every kind and end."""
    found: list[ParameterSet] = []
    for (history, what), kind, end in itertools.product(HISTORIES.items(), MEMBERS, ENDS):
        if returns in (Return.STARTED_AGAIN, Return.STARTED_LATE) and kind == "peek":
            continue  # it keeps nothing
        if end == "behind" and what.end > POSITION:
            continue  # this history takes nothing
        marks = () if kind in SAMPLE[returns] else (pytest.mark.fault,)
        name = f"{history}-{kind}-{end}"
        found.append(pytest.param(history, kind, end, marks=marks, id=name))
    return found


@pytest.mark.parametrize(("history", "kind", "end"), cases(Return.LIVES_ON))
async def test_a_consumer_that_lives_on_sees_what_is_acknowledged_afterwards(
    history: str, kind: str, end: str, tmp_path: Path
) -> None:
    (await live_through(history, kind, end, tmp_path, Return.LIVES_ON)).check()


@pytest.mark.parametrize(("history", "kind", "end"), cases(Return.ASKED_BEFORE))
async def test_so_does_one_that_comes_back_after_another_client_has_asked_about_the_queue(
    history: str, kind: str, end: str, tmp_path: Path
) -> None:
    (await live_through(history, kind, end, tmp_path, Return.ASKED_BEFORE)).check()


@pytest.mark.parametrize(("history", "kind", "end"), cases(Return.STARTED_AGAIN))
async def test_so_does_one_that_was_stopped_before_and_is_started_again(
    history: str, kind: str, end: str, tmp_path: Path
) -> None:
    (await live_through(history, kind, end, tmp_path, Return.STARTED_AGAIN)).check()


@pytest.mark.parametrize(("history", "kind", "end"), cases(Return.STARTED_LATE))
async def test_so_does_one_that_is_started_again_long_after(
    history: str, kind: str, end: str, tmp_path: Path
) -> None:
    (await live_through(history, kind, end, tmp_path, Return.STARTED_LATE)).check()
