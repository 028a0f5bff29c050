"""Sums over a sliding window: nothing counted twice, nothing kept for ever."""

from __future__ import annotations

from skylarkmq.client.consumer.counters import Window


def test_a_window_forgets_slice_by_slice() -> None:
    window = Window(60)
    for second in range(120):
        window.add(float(second), 1, 10.0)
    assert 50 <= window.messages(119.0) <= 60
    assert window.mean_ms(119.0) == 10.0
    assert window.per_second(119.0) == window.messages(119.0) / 60
    assert window.messages(150.0) == 20, "six slices of ten seconds, the current one among them"
    assert window.messages(200.0) == 0
    assert window.mean_ms(200.0) == 0.0


def test_a_long_silence_empties_it_at_once_and_time_does_not_go_back() -> None:
    window = Window(60)
    window.add(5.0, 3)
    assert window.messages(1e9) == 0
    window.add(1e9, 2)
    window.add(5.0, 1)
    assert window.messages(1e9) == 3


def test_a_call_counts_once_however_many_messages_it_has() -> None:
    window = Window(60)
    window.add(5.0, 30, 10.0)
    window.add(15.0, 0, 20.0)
    assert window.messages(16.0) == 30
    assert window.mean_ms(16.0) == 15.0
