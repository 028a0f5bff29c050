"""Consume queues: for each queue of a topic, a unit of 20 bytes for each message.

Units are derived from the log and shown once their messages may be read. `queue_table` holds all
queues and keeps the newest units in memory, `queue_flusher` has them written and synced by the
queues thread, `queue_loader` finds them at a start.
Recovery builds again what a crash has lost. Nothing here reads a message's body.
"""
