"""RocketMQ's replication, between brokers of either kind.

`ha_server.py` is the master's end of the connection between a master and a slave, `ha_client.py`
the slave's. `replica_acks.py` lets the sends to a SYNC_MASTER wait. `slave_rules.py` has what a
slave refuses, `master_address.py` where it finds its master, and `slave_sync.py` copies the tables
that are not in the log.
"""
