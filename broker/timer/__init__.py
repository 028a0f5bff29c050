"""Messages with a delay of their own: read from the timer topic, delivered when they are due.

`service` moves what was sent into the store's timer index, and what is due to its topic. Nothing
is delivered early or lost; after a crash what was delivered since the last checkpoint may come a
second time. Delay levels are in `broker/delay`.
"""
