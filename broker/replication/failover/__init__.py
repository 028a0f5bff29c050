"""Replicas of one broker name that elect their master and lose nothing that was acknowledged.

`replica_state.py` decides, event by event. What it works with: `election.py` has the lease and the
swap of the state, `replica_log.py` what is known of the log, `candidacy.py` when to stand for
election, `following.py` the session with a master, `leading.py` and `in_sync.py` a master's term.
The messages, events and actions are in `replica_events.py`. `coordination.py` says what is asked of
the engine that knows who leads; `etcd.py` asks etcd, and `coordinated_state.py` has what stands
there. `terms.py` knows which master wrote which part of a log. `replica_protocol.py` has the bytes
in which replicas speak over the HA port; `replica_links.py` has the connections, with
`replica_connection.py` and `replica_feed.py`. `replica_driver.py` puts these together, with
`engine_requests.py`, and `replica_id.py` knows who this replica is. `replica_rules.py` has what a
replica refuses, `replica_status.py` what the rest of the broker sees of it, and `replica_check.py`
says when it is not ready.

What is beside the messages goes over in the log too: `broker/replication/metadata/`.
"""
