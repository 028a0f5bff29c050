"""What looks on while a client works: metrics, spans, RocketMQ's own message trace.

A hook must never fail a send or a delivery.
"""
