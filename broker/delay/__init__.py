"""Delayed messages by level: stored in SCHEDULE_TOPIC_XXXX, delivered to their topic when due.

Messages with a time of their own are in `broker/timer`.
"""
