"""The consuming side of the SDK: groups, pulls, handlers, offsets, retries.

`consumer` is what applications use. `membership` and `rebalance` decide which queues this member
has, `pull_service` fills a `message_buffer` for each, `handlers` and `orderly` hand messages out,
`offset_store` commits what is done. An offset is never committed past a message that is not.
"""
