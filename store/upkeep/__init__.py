"""What keeps a store sound: recovery at the start, removal of what has expired, full disks.

`recovery` decides how much of the log is believed after a crash, and how much is cut. It refuses
to cut what was known to be on the disk. `cleaning` and `queue_cleaner` remove whole files, from the
oldest on.
"""
