"""Connections of the SDK, and the typed requests that go over them.

One connection for each address, shared by all producers and consumers of a client. It knows the
protocol and nothing of groups or retries.
"""
