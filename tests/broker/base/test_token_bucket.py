"""A burst, then a rate; what was left out is counted."""

from skylarkmq.broker.base.token_bucket import TokenBucket
from tests.support.manual_clock import ManualClock


def test_a_burst_then_a_rate() -> None:
    clock = ManualClock()
    bucket = TokenBucket(clock, burst=3, per_s=0.5)
    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    assert (bucket.left_out(), bucket.left_out()) == (2, 0)
    clock.advance(4)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.advance(3600)
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
