"""Pulls that are not answered at once.

`long_polling` holds a pull until a message arrives or its time is over. `cold_pulls` bounds how
many wait for the disk. The pull processor is the only caller.
"""
