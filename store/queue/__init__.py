"""Consume queues: a unit of 20 bytes a message, by topic and queue, derived from the log."""
