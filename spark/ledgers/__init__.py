"""What jobs keep beside their tables: small objects, lines, and who is at work, on any store.

Drivers and tasks call it. It knows nothing of messages, and loads no library of stores before one
is used.
"""
