"""Whether everyone on the network may do anything here."""

from __future__ import annotations

from skylarkmq.broker.config.settings import ServerConfig
from skylarkmq.broker.net.addresses import is_loopback


def why_open(config: ServerConfig) -> str:
    """Return why strangers have every right, and the cure; empty when they have not.

    TLS that lets everyone in keeps others from listening; it does not tell who asks.
    """
    known = config.acl_enable or config.tls.admits_known_clients_alone
    if known or is_loopback(config.bind_address):
        return ""
    secret = config.tls.tls_server_mode == "enforcing"
    return (
        f"OPEN TO THE NETWORK: any machine that reaches {config.bind_address} may read, send and "
        f"delete everything{'' if secret else ', in plain text'}. Admit known clients alone "
        "(aclEnable, or tls.server.mode=enforcing with tls.server.need.client.auth=require), or "
        "keep others out (a firewall, or bindAddress=127.0.0.1)"
    )
