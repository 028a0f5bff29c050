"""RocketMQ's replication: a slave follows its master's commit log over a connection of its own.

`metadata_log.py` brings what is beside the messages into the log, for replicas that copy nothing
else: `metadata_record.py` has the records, `metadata_tables.py` the tables that go over, and those
that do not.

`ha_protocol.py` has the bytes of that connection. The store gives and takes the log itself, with
`CommitLog.part` and `MessageStore.take_records`, and knows nothing of connections.
`ha_server.py` is the master's end and `ha_client.py` the slave's; `slave_rules.py` has what a slave
refuses.

`coordination.py` says what replicas that elect their master ask of a coordination engine.
`slave_rules.py` has what a slave refuses, `master_address.py` where it finds its master, and
`slave_sync.py` copies the tables that are not in the log.
`coordination.py` says what replicas that elect their master ask of a coordination engine;
`etcd.py` asks etcd for it. `replica_state.py` decides, event by event; `replica_protocol.py` has
the bytes in which such replicas speak over the HA port.
"""
