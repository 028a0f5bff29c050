"""What the broker counts, and how it is told: Prometheus families, and RocketMQ's texts for 28.

Counters are plain integers of the loop thread; only a scrape builds families of them.
"""
