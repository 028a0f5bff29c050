"""The sink: rows to messages, and messages to brokers.

A task sends with a window of its own (`window`) and gives each row a message id that is the same
when the task runs again; `promises` knows what that is worth at a topic's brokers. Most rows become
messages a slice at a time (`packing`), the others one by one (`rows`). `sink` in the folder above
is the door that Spark knows.
"""
