"""What happened to transactions since the start."""

from __future__ import annotations


class TransactionStats:
    """Plain counters. Loop thread."""

    __slots__ = ("asked", "committed", "given_up", "nobody", "postponed", "refused", "rolled_back")

    def __init__(self) -> None:
        self.committed = 0
        self.rolled_back = 0
        self.given_up = 0  # moved to TRANS_CHECK_MAX_TIME_TOPIC
        self.asked = 0  # questions that were sent
        self.nobody = 0  # questions without a client of the group to send them to
        self.postponed = 0  # written anew because nobody may be asked yet
        self.refused = 0  # verdicts that name no open half message
