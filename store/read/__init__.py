"""Reading messages by queue offset, by time, or by their place in the log.

`message_reader` answers on the loop thread from memory and page cache; `cold_reads` does the same
on the reads thread for what is old and may wait for the disk. The processors of pulls and queries
call both through `MessageStore`. Nothing here changes the store.
"""
