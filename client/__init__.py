"""The asyncio SDK: producers and consumers for SkylarkMQ and Apache RocketMQ."""
