"""What the journal of pop consumption says, and the bytes of its files, `<root>/skylarkmq/pop/`.

The broker's `pop/journal.py` writes them; it and `store dump` read them. When what is written, and
what of it is still true of the queues, is decided in the broker.
"""
