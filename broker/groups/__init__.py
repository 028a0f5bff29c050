"""Groups of producers and consumers: settings, members, offsets, queue locks.

The processors call it on the loop thread. A change that a client waits for is durable before it is
acknowledged.
"""
