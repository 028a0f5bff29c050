"""The message store: the commit log and what is derived from it."""
