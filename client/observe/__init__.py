"""What looks on while a client works: hooks, metrics, spans.

RocketMQ's own message trace is a hook that sends: `producer/trace.py`.

A hook must never fail a send or a delivery.
"""
