"""Headers of replicas that elect their master (30002, 30003). All ours.

30001 has no header; its body is in `bodies/replica.py`.
"""

from skylarkmq.protocol.headers.fields import Header, JavaLong


class SwitchOverRequestHeader(Header, kw_only=True, frozen=True):
    """Which replica shall lead, by its replica id; None: the one with the most of the log."""

    target: str | None = None


class SwitchOverResponseHeader(Header, kw_only=True, frozen=True):
    """Who leads now, as far as the replica that was asked has seen it."""

    master: str
    term: JavaLong


class ForceFailoverRequestHeader(Header, kw_only=True, frozen=True):
    """Nothing is done without `accept_loss`."""

    accept_loss: bool


class ForceFailoverResponseHeader(Header, kw_only=True, frozen=True):
    """How many messages of the new master's log may differ from what was shown before."""

    messages_at_risk: JavaLong
    term: JavaLong
