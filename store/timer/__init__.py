"""Messages that wait for a time of their own: an index on the disk, in order of that time.

It is derived from the timer topic's queue and can be built again from it. `index` merges sorted
runs (`run_file`), `checkpoint` says how far it has come. The broker's timer service is its only
caller; when a message is due, and what happens then, is decided there.
"""
