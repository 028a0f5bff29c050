"""The broker's tables as JSON files, each with a `.bak`, durable before a change is answered.

`following` is for tables that speak of messages: their files come after the log's.
"""
