"""A store that no broker has open, for reading only: ours, or RocketMQ's.

The command line's store tools and Spark's commit-log reader stand on it.
"""
