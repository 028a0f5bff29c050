"""Times as people give them to commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from skylarkmq.tools.moments import Moment, span_of


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's zone is 9 h ahead of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+09:00", datetime(2026, 1, 31, 3, tzinfo=UTC)),
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("1769860800000", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_a_time_without_a_zone_is_utc_wherever_the_machine_stands(
    text: str, moment: datetime
) -> None:
    assert Moment().convert(text, None, None) == moment


def test_spans_and_what_is_neither() -> None:
    assert span_of("10m") == Moment().convert("10m", None, None) == timedelta(minutes=10)
    assert span_of("10") is None
    with pytest.raises(click.BadParameter, match="is no time"):
        Moment().convert("yesterday", None, None)
    given = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert Moment().convert(given, None, None) is given
