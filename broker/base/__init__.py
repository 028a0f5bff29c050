"""What every folder of the broker may use, and what uses none of them.

Clocks, waiting for the store, token buckets, counters, logs, health and the process itself;
patterns of addresses and the protocol of replication, which the configuration has to know.
"""
