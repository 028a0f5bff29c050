"""Connections: bytes to frames, frames to processors, answers back; limits on what peers may hold.

It knows nothing of messages and topics: `router` hands each request to the processor of its code.
"""
