"""Who may less since the accounts changed: an account that is gone, has another secret or white
list, or has lost a right; an address that the global white lists let in no more.

Each request is checked when it comes, so their next one is refused. What waits for messages was
checked long before: it ends with the change, wherever it waits.

    remoting   the connections that the account or the address used: with them go the pulls and
               pops that wait, reads under way, memberships in groups
    gRPC       receives that wait, streams of telemetry, memberships in groups

The client comes again, and is told what it may not, or goes on with what it still may.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from skylarkmq.broker.access.accounts import AccessRules, Account
from skylarkmq.broker.base.addresses import AddressList

BY_ADDRESS: Final = ""
"""Among access keys: a white list of addresses let it in, no account."""


def access_key_of(account: object) -> str:
    """Return the access key of who was let in; an account, or None for an address."""
    return account.access_key if isinstance(account, Account) else BY_ADDRESS


class Revoked:
    """What a change of the accounts takes from whom.

    Attributes:
        keys: access keys of accounts that may less than before.
    """

    def __init__(self, before: AccessRules, after: AccessRules) -> None:
        self.keys = frozenset(
            key
            for key, account in before.accounts.items()
            if (now := after.accounts.get(key)) is None or not now.may_all_of(account)
        )
        has_less = not set(before.white_texts) <= set(after.white_texts)
        self._white: AddressList | None = after.white if has_less else None

    def __bool__(self) -> bool:
        return bool(self.keys) or self._white is not None

    def takes_from(self, access_keys: Collection[str], address: str) -> bool:
        """Return whether who was let in may less now.

        Args:
            access_keys: of the accounts that it used; BY_ADDRESS where it did without one.
            address: its `host:port`.
        """
        if not self.keys.isdisjoint(access_keys):
            return True
        if self._white is None or BY_ADDRESS not in access_keys:
            return False
        return not self._white.matches(address.rpartition(":")[0])
