"""The board of copies: masters with slaves, and replicas that elect their master."""

from __future__ import annotations

from deploy.grafana.style import (
    ACK,
    ANY,
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    EACH,
    FAR,
    HERE,
    SECONDS,
    TOO_FEW,
    Board,
    figure,
    graph,
    listing,
    ours,
    quantile,
    rate,
)

LEADS = ours("skylarkmq_replica_state", state="master")
IN_SYNC = f"{ours('skylarkmq_replica_in_sync')} and on (job, instance) {LEADS} == 1"
NOW = [
    figure(
        "Sets without a master", "Sets of replicas in which nobody leads: nothing is taken.",
        f"count(max by (cluster, broker) ({LEADS}) < 1) or vector(0)", steps=ANY,
    ),
    figure(
        "Fewest in sync", "Replicas for whose confirmation acknowledgements wait, in the set "
        "that has the fewest. 1: acknowledged messages are on one disk.",
        f"min({IN_SYNC})", steps=TOO_FEW,
    ),
    figure(
        "Halted replicas", "Replicas that stand still until an operator looks.",
        f"sum({ours('skylarkmq_replica_halted')})", steps=ANY,
    ),
    figure(
        "Replicas without etcd", "Replicas that etcd does not answer.",
        f"count({ours('skylarkmq_replica_engine_reachable')} == 0) or vector(0)", steps=ANY,
    ),
    figure(
        "Slaves", "Slaves that follow their masters, in RocketMQ's replication.",
        f"sum({ours('skylarkmq_slaves')})",
    ),
    figure(
        "Slaves that do not follow", "Slaves to which no log comes.",
        f"count({ours('skylarkmq_master_connected')} == 0) or vector(0)", steps=ANY,
    ),
]  # fmt: skip
LAG = [
    graph(
        "Followers", "Bytes of the master's log that a follower has not confirmed.", BYTES,
        (ours("skylarkmq_replica_behind_bytes"), "{{broker}} {{broker_id}} {{replica}}"),
        steps=FAR,
    ),
    graph(
        "Slaves", "Bytes of the master's log that a slave has not confirmed.", BYTES,
        (ours("skylarkmq_slave_behind_bytes"), "{{broker}} {{slave}}"), steps=FAR,
    ),
    graph(
        "Not confirmed", "Bytes of a master's log that a failover might lose; nobody was told "
        "that they are stored.", BYTES,
        (
            f"sum by ({EACH}) ({ours('skylarkmq_replica_offset_bytes', mark='end')}) - "
            f"sum by ({EACH}) ({ours('skylarkmq_replica_offset_bytes', mark='confirmed')})",
            HERE,
        ),
    ),
]  # fmt: skip
LOAD = [
    graph(
        "Sent to slaves", "Bytes of the log sent to slaves a second.", BYTES_PER_SECOND,
        (rate(ours("skylarkmq_slave_sent_bytes_total")), HERE),
    ),
    graph(
        "Received by slaves", "Bytes of the master's log that came a second.", BYTES_PER_SECOND,
        (f"deriv({ours('skylarkmq_master_received_offset_bytes')}[5m])",
         HERE),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Acknowledgement", "Below it are 50 % and 99 % of the waits from append to "
        "acknowledgement: for all replicas in sync, or for the disk.", SECONDS,
        (quantile(0.5, ours(ACK), EACH), f"{HERE} 50 %"),
        (quantile(0.99, ours(ACK), EACH), f"{HERE} 99 %"), steps=((1, "red"),),
    ),
]  # fmt: skip
STATE = [
    listing(
        "Replicas", "The state of each replica, and the number of its mastership.",
        (
            f"max by (broker, instance, state) ({ours('skylarkmq_replica_state')} == 1)",
            "Is so", COUNT,
        ),
        (f"max by (broker, instance) ({ours('skylarkmq_replica_term')})", "Term", COUNT),
    ),
    graph(
        "In sync", "Replicas for whose confirmation acknowledgements wait, as the master says.",
        COUNT, (f"max by (broker) ({IN_SYNC})", "{{broker}}"),
    ),
    graph(
        "Who leads", "1 while a replica is the master.", COUNT,
        (f"max by ({EACH}) ({LEADS})", HERE),
    ),
    graph(
        "Slaves", "Slaves that follow a master.", COUNT,
        (ours("skylarkmq_slaves"), HERE),
    ),
]  # fmt: skip
TROUBLE = [
    graph(
        "Changes of the master", "In an hour, as each replica has seen them.", COUNT,
        (f"increase({ours('skylarkmq_replica_mastership_changes_total')}[1h])", HERE),
    ),
    graph(
        "Lost and refused", "1 while a slave refuses its master's log, and while a replica is "
        "away.", COUNT,
        (ours("skylarkmq_master_refused"), f"{HERE} refuses"),
        (
            f"1 - max by (broker, broker_id) ({ours('skylarkmq_replica_alive')})",
            "{{broker}} {{broker_id}} away",
        ),
    ),
    graph(
        "Forced failovers", "Times that an operator accepted a loss, and the messages that it "
        "may have cost.", COUNT,
        (ours("skylarkmq_replica_forced_failovers_total"), f"{HERE} times"),
        (ours("skylarkmq_replica_messages_at_risk_total"), f"{HERE} messages"),
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-replication", "SkylarkMQ: replication",
    "Master and slaves, and replicas that elect their master.",
    [
        ("Now", NOW), ("Lag", LAG), ("Load", LOAD), ("Latency", LATENCY), ("State", STATE),
        ("Trouble", TROUBLE),
    ],
)  # fmt: skip
