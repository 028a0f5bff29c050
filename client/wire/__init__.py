"""The SDK's typed requests, and the routes that say where they go.

All go over the connections of one `remoting/client.py::RemotingClient`, which the producers and
consumers of a client share. It knows the protocol and nothing of groups or retries.
"""
