"""What waits for its time, in order, on the disk: derived from the timer topic's queue."""
