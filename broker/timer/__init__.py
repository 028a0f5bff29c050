"""Messages with a delay of their own: read from the timer topic, delivered when due."""
