"""What blocks: connections, pulls and sends of Spark's driver and tasks, without an event loop."""
