"""Connections that this process opens, to brokers and to name servers.

Frames of one read, calls that wait for their answers, deadlines, back-pressure, TLS, and new
connections after a back-off: `client.RemotingClient`, `connection.Connection`. It knows frames and
commands, and nothing of topics, groups or retries.

Peers that connect to the broker have a lean connection of their own, `broker/net/connection.py`.
Both ends keep the calls that wait for answers in `pending_calls.PendingCalls`.
"""
