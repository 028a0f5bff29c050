"""The broker's tables as JSON files, each with a `.bak`, durable before a change is answered.

`persist` brings a table to its file; tables that speak of messages come there after the log.
"""
