"""The name server: which brokers have which topics.

It runs inside the broker's process, on a thread of its own (`built_in`), or alone as `skylarkmq
namesrv`. `route_info` holds the routes of all brokers that registered, ours or RocketMQ's, and
drops those that fall silent. It keeps nothing on the disk but its key-value table.
"""
