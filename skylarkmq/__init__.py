"""SkylarkMQ: a message broker that speaks RocketMQ's remoting protocol, its asyncio SDK and tools."""

__version__ = "0.1.0"
