"""Where a group stands in its queues: where it starts, what it committed, on the broker or here."""
