"""Copies of the log on other machines.

`ha/` is RocketMQ's replication: the roles are configured, and a slave follows its master's commit
log over a connection of its own. `failover/` is for replicas that elect their master, with etcd as
the engine that knows who leads, so that nothing acknowledged is lost with a machine.
`metadata/` brings what is beside the messages into the log, for those replicas.

The store gives and takes the log itself, with `CommitLog.part` and `MessageStore.take_records`, and
knows nothing of connections.
"""
