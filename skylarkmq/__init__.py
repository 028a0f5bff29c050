"""SkylarkMQ: a broker that speaks RocketMQ's remoting protocol, its asyncio SDK and its tools."""

__version__ = "0.1.0"
