"""The message store: the commit log, and what is derived from it.

    log       records on the way to the disk     queue   consume queues
    index     the key index                      read    reading messages
    timer     what waits for its time            upkeep  recovery, removal of what has expired
    stopped   a store that no broker has open

The broker opens one with `message_store.MessageStore`, whose loop thread owns all state. The store
knows bytes, topics and queues; it knows nothing of connections, groups or requests.
"""
