"""The key index: from `topic#key` to places in the log, in RocketMQ's index files.

It follows the log on a thread of its own and is built again from the log when it is not trusted.
"""
