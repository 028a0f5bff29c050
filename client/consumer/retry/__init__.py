"""When a handler fails: the next try, here or by the broker, and the dead letters."""
