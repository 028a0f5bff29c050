"""What every room needs and none owns: the clock's types, named threads, the only door to the disk.

Every room imports it; it imports nothing of ours. It stays small: a thing that one room alone uses
lives in that room.
"""
