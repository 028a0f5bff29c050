"""Tools for stopped stores, ours or RocketMQ's: `skylarkmq store`."""
