"""Request processors for administrators: topics, groups, offsets, queues, the broker itself."""
