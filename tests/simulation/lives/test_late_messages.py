"""Messages that wait for their time, over a log that becomes shorter, and a topic that goes.

Delayed ones have a level, timed ones a time of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.properties import encode_properties
from tests.simulation.lives.histories import FIRST, HISTORIES
from tests.simulation.lives.members import Clustering
from tests.support.broker_lives import TOPIC, BrokerLives, topic_fields
from tests.support.crash_disk import CrashDisk
from tests.support.delivery_history import DeliveryHistory
from tests.support.raw_client import send_fields

WAIT_S: Final = 5.0
LATE_S: Final = 30.0
"""After this everything has come that comes."""


async def send_late(lives: BrokerLives, message: str, kind: str, wait_s: float = WAIT_S) -> None:
    """A message that names its time, or one of a delay level."""
    due = {"TIMER_DELIVER_MS": str(lives.clock.now_ms() + round(wait_s * 1000))}
    wait = due if kind == "timed" else {"DELAY": "2"}
    text = encode_properties({"UNIQ_KEY": message, **wait})
    lives.history.sent(message)
    await lives.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, 0, text), message.encode())


async def seen_by_a_new_group(lives: BrokerLives, folder: Path, *messages: str) -> set[str]:
    """Send messages, wait, and return what a group gets that reads from the first one on."""
    member = Clustering(lives, folder, group="late-readers")
    await member.start()
    await lives.send(*messages)
    await lives.pump(LATE_S)
    member.look()
    await member.stop()
    return set(member.seen())


async def live_through(history: str, kind: str, folder: Path) -> set[str]:
    """One history with late messages before and after; what a new group gets at last."""
    lives = BrokerLives(DeliveryHistory())
    await lives.boot(CrashDisk())
    await lives.send(*FIRST)
    await send_late(lives, "pending", kind, 3600.0)
    await send_late(lives, "twice", kind, 20.0)
    await lives.pump(2.0)
    copy = lives.life.disk.snapshot()
    await lives.send("x0")  # the tools cut here
    for number in range(4):
        await send_late(lives, f"l{number}", kind)
    await lives.pump(LATE_S)
    await lives.keep_tables()
    await HISTORIES[history].act(lives, copy, folder / "store")
    await send_late(lives, "m0", kind)
    await lives.pump(LATE_S)
    return await seen_by_a_new_group(lives, folder, "n0")


KINDS: Final = ("timed", "delayed")
GOES_NOT_WITH_ITS_TOPIC: Final = "late messages of a deleted topic come in the next one of its name"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("history", HISTORIES)
async def test_what_waits_for_its_time_comes_in_the_next_life_too(
    history: str, kind: str, tmp_path: Path
) -> None:
    assert "m0" in await live_through(history, kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("history", [name for name, each in HISTORIES.items() if each.end])
async def test_a_late_message_whose_copy_the_cut_took_comes_again(
    history: str, kind: str, tmp_path: Path
) -> None:
    assert "twice" in await live_through(history, kind, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_waits_for_its_time_goes_with_its_topic(kind: str, tmp_path: Path) -> None:
    lives = BrokerLives(DeliveryHistory())
    await lives.boot(CrashDisk())
    await lives.send(*FIRST)
    await send_late(lives, "l0", kind)
    await lives.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    await lives.pump(2.0)
    await lives.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields())
    await send_late(lives, "l1", kind)
    await lives.pump(LATE_S)
    assert await seen_by_a_new_group(lives, tmp_path, "n0") == {"l1", "n0"}


@pytest.mark.parametrize("kind", ["timed", "delayed"])
async def test_a_topic_that_has_late_messages_alone(kind: str, tmp_path: Path) -> None:
    lives = BrokerLives(DeliveryHistory())
    await lives.boot(CrashDisk())
    await send_late(lives, "l0", kind)
    await lives.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    await lives.pump(2.0)
    await lives.call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields())
    await lives.pump(LATE_S)
    assert await seen_by_a_new_group(lives, tmp_path, "n0") == {"n0"}
