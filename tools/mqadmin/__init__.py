"""RocketMQ 4.9's `mqadmin`, in its spelling: the same names, letters and columns, over Admin.

For scripts and hands that know it. `table` says what a command is and makes click commands of it,
`cli` has them all, the other modules what they do. Where a text of Java's depends on the order of a
hash table, ours is sorted. What 4.9 writes into files of the machine goes into a folder of its own.
"""
