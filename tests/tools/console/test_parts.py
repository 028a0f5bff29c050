"""What pages are made of: bodies, lines over time, numbers and times."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skylarkmq.client import StoredMessage
from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import IllegalState
from skylarkmq.client.instance import Client
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.tools.console import text
from skylarkmq.tools.console.access import ACCESSES_MAX, Accesses, forget_in_time
from skylarkmq.tools.console.bodies import HEX_SIZE_MAX, SHOWN_MAX, body_of, preview
from skylarkmq.tools.console.chart import lag_chart, small_line
from skylarkmq.tools.console.gone import Registered
from skylarkmq.tools.console.history import POINTS_MAX, SERIES_MAX, History, Sample
from skylarkmq.tools.console.pages import tail
from skylarkmq.tools.console.sessions import FAILURES_MAX, IDLE_MAX_S, SESSIONS_MAX, Sessions
from skylarkmq.tools.console.settings import Settings
from tests.support.manual_clock import ManualClock
from tests.support.patience import until


def stored(body: bytes, sys_flag: int = 0) -> StoredMessage:
    here = HostAddress("127.0.0.1", 1)
    message = MessageExt("T", 0, 0, 0, 0, sys_flag, 1, here, 1, here, 0, 0, body, {}, 0, len(body))
    return StoredMessage(message, MessageQueue("T", "b", 0), "T")


def test_a_body_is_shown_in_the_form_that_fits() -> None:
    assert body_of(stored(b"")).form == "empty"
    assert body_of(stored(b' {"a": [1]}')).text == '{\n  "a": [\n    1\n  ]\n}'
    assert body_of(stored(b"{no json")).form == "text"
    assert body_of(stored("Größe".encode())).text == "Größe"
    assert body_of(stored(b"\x00\xffABC")).text.endswith("ABC|")
    assert body_of(stored(b"[" * 100_000)).form == "text"  # too deep to be read
    assert body_of(stored(b'["\\ud800"]')).text == '["\\ud800"]'  # half a character
    assert body_of(stored(b"\xff"), "text").text == "\N{REPLACEMENT CHARACTER}"
    assert body_of(stored(b"plain"), "json").form == "text"
    assert body_of(stored(b"plain"), "hex").text.startswith("00000000  70 6c 61 69 6e")


def test_of_a_large_body_the_beginning_is_shown() -> None:
    body = body_of(stored(b"x" * (SHOWN_MAX + 1)))
    assert (body.is_cut, len(body.text), body.size) == (True, SHOWN_MAX, SHOWN_MAX + 1)
    body = body_of(stored(bytes(HEX_SIZE_MAX + 1)))
    assert body.is_cut and body.text.count("\n") == HEX_SIZE_MAX / 16 - 1


def test_compressed_bodies_are_opened_and_broken_ones_say_so() -> None:
    flag = int(MessageSysFlag.COMPRESSED_FLAG)
    body = body_of(stored(zlib.compress(b'{"a":1}'), flag))
    assert (body.form, body.size) == ("json", 7)
    body = body_of(stored(b"no zlib", flag))
    assert body.form == "unreadable" and "cannot be opened" in body.text
    assert preview(stored(b"no zlib", flag)) == "(cannot be opened)"


def test_a_preview_is_one_line() -> None:
    assert preview(stored(b"a\n  b\tc")) == "a b c"
    assert len(preview(stored(b"x" * 1000))) == 160
    assert preview(stored(bytes([0, 1, 255]))) == "00 01 ff"
    assert preview(stored("ü".encode() * 1000)).startswith("üü")  # cut inside of a character


def samples(*values: float, step_ms: int = 15_000) -> list[Sample]:
    return [Sample(1_000 + step_ms * at, value, 0) for at, value in enumerate(values)]


def test_a_chart_has_axes_and_gaps_and_no_style() -> None:
    assert not lag_chart([]) and not lag_chart(samples(1)) and not small_line(samples(1), "x")
    chart = lag_chart(samples(0, 420, 80))
    assert ">500<" in chart and ">250<" in chart and "00:00:16" in chart
    assert 'aria-label="Lag over 30 s: now 80, at most 420"' in chart
    assert chart.count('class="line"') == 1 and "style" not in chart
    early = samples(1, 2, 3)
    late = [Sample(each.at_ms + 3_600_000, each.value, 0) for each in early]
    assert lag_chart([*early, *late]).count('class="line"') == 2
    assert "&#34;&gt;" in small_line(samples(1, 2), '">')


def test_history_is_bounded() -> None:
    history = History(Registered())
    for at in range(POINTS_MAX + 5):
        history.add("group", "g", Sample(at, at, 0))
    assert [each.at_ms for each in history.of("group", "g")][:1] == [5]
    for number in range(SERIES_MAX):
        history.add("group", f"g{number}", Sample(1, 1, 0))
    assert history.last("group", "g") is None and history.last("group", "g0") is not None


def test_sessions_end_and_are_bounded() -> None:
    clock = ManualClock()
    sessions = Sessions(clock)
    account = Credentials("account", "secret")
    session = sessions.new(account)
    cookie = sessions.cookie(session)
    assert sessions.read(cookie) is session and "secret" not in repr(session)
    assert sessions.read(cookie[:-1] + "x") is None
    assert Sessions(clock).read(cookie) is None  # of another console
    assert sessions.is_token(session, sessions.token(session))
    assert not sessions.is_token(sessions.new(), sessions.token(session))
    clock.advance(IDLE_MAX_S + 1)
    assert sessions.read(cookie) is None
    first = sessions.new(account)
    for _ in range(SESSIONS_MAX):
        sessions.new(account)
    after = sessions.read(sessions.cookie(first))
    assert after is None or after.credentials is None


async def test_an_account_whose_sessions_are_over_takes_no_place() -> None:
    def connect(credentials: Credentials | None) -> Client:
        return Client("127.0.0.1:1", credentials=credentials)

    clock, own = ManualClock(), Credentials("own", "secret")
    sessions = Sessions(clock)
    accesses = Accesses(Settings("127.0.0.1:1", connect, credentials=own), clock)
    accounts = [Credentials(f"account-{number}", "secret") for number in range(ACCESSES_MAX - 1)]
    before = [accesses.of(account) for account in (own, *accounts)]
    for account in accounts:
        sessions.new(account)
    with pytest.raises(IllegalState, match="which is the limit"):
        accesses.of(Credentials("one-more", "secret"))
    forgetting = asyncio.create_task(forget_in_time(sessions, accesses, clock))
    await until(lambda: clock.pending_count, "the first look")
    clock.advance(IDLE_MAX_S + 1)
    sessions.new(accounts[0])
    await until(lambda: clock.pending_count, "the next look")
    after = [accesses.of(account) for account in (own, *accounts[:2])]
    assert [a is b for a, b in zip(before, after, strict=False)] == [True, True, False]
    forgetting.cancel()
    await accesses.stop()


def test_logins_at_the_same_time_are_guesses_until_one_succeeds() -> None:
    sessions = Sessions(ManualClock())
    trials = [sessions.trying() for _ in range(FAILURES_MAX)]
    assert sessions.is_guessed_at
    sessions.succeeded(trials[0])
    assert not sessions.is_guessed_at


def test_what_stands_between_backticks_is_code() -> None:
    assert text.code("do `a <b>` & c") == "do <code>a &lt;b&gt;</code> &amp; c"
    assert text.code("odd ` one") == "odd <code> one</code>"


def test_numbers_and_times_for_people() -> None:
    assert [text.number(1234567), text.number(None)] == ["1,234,567", "\N{EN DASH}"]
    assert [text.size(0), text.size(1536), text.size(300 << 20)] == ["0 B", "1.5 KiB", "300.0 MiB"]
    assert [text.rate(0), text.rate(1.25), text.rate(12345.6)] == ["0", "1.2", "12,346"]
    now = datetime(2026, 11, 26, tzinfo=UTC)
    assert text.ago(None, now) == "never" and text.ago(now, now) == "now"
    assert text.ago(now - timedelta(minutes=5), now) == "5 min ago"
    assert text.ago(now + timedelta(hours=3), now) == "in 3 h"
    assert text.parse_time(" ", "x") is None
    assert text.parse_time("2026-11-26T01:00:00+01:00", "x") == now
    assert text.parse_time("2026-11-26", "x") == now
    with pytest.raises(text.BadInput, match="From is a time in UTC"):
        text.parse_time("now", "From")


@pytest.mark.parametrize("ends", [False, True])
async def test_a_tail_tells_what_it_left_out_once_no_more_comes(
    monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(tail, "TOLD_S", 0.05)

    async def read() -> AsyncGenerator[StoredMessage]:
        for _ in range(tail.RATE_MAX + 3):
            yield stored(b"x")
        if not ends:
            await asyncio.Event().wait()

    reader: Any = read()
    events = [event async for event in limited(tail.events_of(reader, ManualClock(), {}))]
    assert len(events) == tail.RATE_MAX + 1
    assert events[-1] == 'event: skipped\ndata: {"count": 3}\n\n'


async def limited(events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async for event in events:
        yield event
        if "skipped" in event:
            return
