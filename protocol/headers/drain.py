"""Headers of a broker that is drained before it is stopped (30004). All ours."""

from skylarkmq.protocol.headers.fields import Header, JavaInt


class DrainBrokerRequestHeader(Header, kw_only=True, frozen=True):
    """What shall be done: `start`, `undo` or `status`.

    Clients learn a new route within `refresh` seconds. `leaving` names brokers that leave as well,
    with commas.
    """

    action: str
    refresh: JavaInt | None = None
    leaving: str | None = None


class DrainBrokerResponseHeader(Header, kw_only=True, frozen=True):
    """How it stands: the state, how many topics move, how many stay, and why it cannot be.

    `waits_for` says what has to happen yet.
    """

    state: str
    moved: JavaInt
    stays: JavaInt
    why: str | None = None
    waits_for: str | None = None
