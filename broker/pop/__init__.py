"""Pop consumption: messages are handed out one by one, and each is acknowledged by itself.

`journal` keeps what is in flight and what is done, above the group's offset, on the disk.
"""
