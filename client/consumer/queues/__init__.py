"""Which queues a member owns: division of a topic, locks, joining and leaving a group."""
