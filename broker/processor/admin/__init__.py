"""Requests of administrators: topics, groups, offsets, queues, and the broker itself.

Called by mqadmin, the dashboard, our `Admin` and command line. A change is answered when it is
durable. Answers that may be large are made off the loop or in slices.
"""
