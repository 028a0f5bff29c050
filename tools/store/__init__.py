"""Tools for stopped stores, ours or RocketMQ's: `skylarkmq store`.

They read through `store/stopped`. Those that change a store (`rebuild`, `truncate`) take its lock,
and only say what they would do unless they are told to write.
"""
