"""The sink: rows to messages, and messages to brokers.

A task sends with a window of its own (`window`) and gives each row a message id that is the same
when the task runs again. `sink` in the folder above is the door that Spark knows.
"""
