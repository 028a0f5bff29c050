"""The commit log: records laid out, written, synced; files made ahead and walked over.

All topics share it. What is acknowledged is here; everything else is derived from it.
"""
