"""Calls that another broker's endpoint forwards: from which address they count as coming.

    x-skylarkmq-client    `host:port` of the client; whoever sends it wants the call handled here
    x-skylarkmq-proof     <access key> <hex digits>, of an account that is an admin's here

The digits are HMAC-SHA256(secret key, client's address, its x-mq-client-id, x-mq-date-time; each
in a line). White lists let addresses in without an account, so with access control on an address
counts only with a proof. Without one the call has that of the connection, and no white list lets it
in: who is behind the other endpoint is not known. The account of the call is the client's own all
the same: its signature is forwarded as it came.

Whoever has read a proof may use the client's address from then on: TLS is what protects it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hmac import compare_digest, digest
from ipaddress import ip_address
from typing import Final

from skylarkmq.broker.access.accounts import AccessRules, Account

CLIENT: Final = "x-skylarkmq-client"
PROOF: Final = "x-skylarkmq-proof"
_ADDRESS: Final = re.compile(r"[0-9A-Za-z.:%_-]{2,64}:[0-9]{1,5}")  # % before an interface's name


def client_of(metadata: Mapping[str, str]) -> str:
    """Return the client's address as another endpoint says it; empty when it says none."""
    client = metadata.get(CLIENT, "")
    if _ADDRESS.fullmatch(client) is None:
        return ""
    host, _, port = client.rpartition(":")
    try:
        ip_address(host)
    except ValueError:
        return ""
    return client if int(port) <= 0xFFFF else ""


def proof_of(account: Account, client: str, metadata: Mapping[str, str]) -> str:
    """Return what proves a client's address.

    Args:
        account: an admin's.
        metadata: of the client's call.
    """
    said = metadata.get("x-mq-client-id", ""), metadata.get("x-mq-date-time", "")
    proof = digest(account.secret_key, "\n".join((client, *said)).encode(), "sha256").hex()
    return f"{account.access_key} {proof}"


def proving_key(metadata: Mapping[str, str]) -> str:
    """Return the access key of the account whose word a client's address is; empty: nobody's."""
    return metadata.get(PROOF, "").partition(" ")[0]


def is_proved(rules: AccessRules, client: str, metadata: Mapping[str, str]) -> bool:
    """Return whether a client's address is proved."""
    proof = metadata.get(PROOF, "")
    account = rules.accounts.get(proving_key(metadata))
    if account is None or not account.is_admin:
        return False
    return compare_digest(proof_of(account, client, metadata).encode(), proof.encode())
