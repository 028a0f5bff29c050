"""Lines of the broker and the name server."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MUTANTS: Final = (
    # Sends
    Mutant(
        "broker/processor/send_checks.py",
        "elif queue_id >= max(config.read_queue_nums, config.write_queue_nums):",
        "elif queue_id > max(config.read_queue_nums, config.write_queue_nums):",
        "broker/processor/test_send_checks.py",
    ),
    Mutant(
        "broker/processor/send_checks.py",
        "if reconsume_times < attempts_of(settings, version, max_reconsume_times):",
        "if reconsume_times <= attempts_of(settings, version, max_reconsume_times):",
        "broker/processor/test_send_checks.py broker/processor/test_send.py",
    ),
    Mutant(
        "broker/processor/send_back.py",
        "if message.reconsume_times >= limit or level < 0:",
        "if message.reconsume_times > limit or level < 0:",
        "broker/processor/test_send_back.py",
    ),
    Mutant(
        "broker/processor/send_back.py",
        "        await durable(self._groups, self._topics)\n",
        "",
        "broker/processor/test_send_back.py",
    ),
    Mutant(
        "broker/processor/send_back.py",
        "if message is None or message.topic in _HIDDEN_TOPICS:",
        "if message is None:",
        "broker/processor/test_send_back.py",
    ),
    # Pulls
    Mutant(
        "broker/processor/pull.py",
        "if not 0 <= header.queue_id < topic.read_queue_nums:",
        "if not 0 <= header.queue_id <= topic.read_queue_nums:",
        "broker/processor/test_pull.py",
    ),
    Mutant(
        "broker/processor/pull.py",
        "if commits and not self._store.follows:",
        "if commits:",
        "broker/replication/test_slave_rules.py",
    ),
    Mutant(
        "broker/processor/pull.py",
        "offset = seen if first == asked and is_same else asked",
        "offset = seen",
        "broker/processor/test_pull.py broker/test_long_polling.py",
    ),
    Mutant(
        "broker/processor/plain_pulls.py",
        "frames, start, connection.lanes, self._store.near_terms()",
        "frames, start, self._lanes, self._store.near_terms()",
        "broker/processor/test_pull.py",
    ),
    Mutant(
        "broker/groups/earlier_lives.py",
        "self._let(connection, (group, topic, queue_id), offset)",
        "self._let(connection, (group, topic, queue_id))",
        "broker/test_earlier_lives.py",
    ),
    Mutant(
        "broker/pulling/long_polling.py",
        "if len(of_connection) >= HELD_OF_CONNECTION_MAX:",
        "if len(of_connection) > HELD_OF_CONNECTION_MAX:",
        "broker/test_long_polling.py",
    ),
    Mutant(
        "broker/net/places.py",
        "if len(most) <= own + 1:",
        "if len(most) < own:",
        "broker/test_long_polling.py broker/pop/test_limits.py",
    ),
    Mutant(
        "broker/net/places.py",
        "        self._give_way(oldest)\n",
        "",
        "broker/test_long_polling.py broker/pop/test_limits.py",
    ),
    Mutant(
        "broker/net/router.py",
        "tasks, limit = self._polls, limit + PLACES_MAX",
        "tasks, limit = self._tasks, limit + PLACES_MAX",
        "broker/test_router.py",
    ),
    Mutant(
        "broker/pulling/long_polling.py",
        "elif held.offset < max_offset and self._wants(held, max_offset, looks):",
        "elif self._wants(held, max_offset, looks):",
        "broker/test_long_polling.py",
    ),
    # Groups
    Mutant(
        "broker/groups/consumer_offset.py",
        "        if group == CID_RMQ_SYS_TRANS_GROUP:",
        "        if False:",
        "broker/test_consumer_offset.py",
    ),
    Mutant(
        "broker/groups/consumer_offset.py",
        "                if offset > end:\n                    count += 1",
        "                if offset >= end + 2:\n                    count += 1",
        "broker/test_consumer_offset.py broker/test_group_crash.py",
    ),
    Mutant(
        "broker/groups/consumer_offset.py",
        "        if self.before_write is not None:\n            await self.before_write()\n",
        "",
        "broker/test_consumer_offset.py broker/pop/test_journal.py",
    ),
    Mutant(
        "broker/groups/rebalance_lock.py",
        "if held is not None and held.client_id == client_id:",
        "if held is not None:",
        "broker/test_rebalance_lock.py",
    ),
    Mutant(
        "broker/groups/rebalance_lock.py",
        "return now_s - held.renewed_s > self._max_live_s",
        "return now_s - held.renewed_s >= self._max_live_s",
        "broker/test_rebalance_lock.py",
    ),
    Mutant(
        "broker/groups/consumer_manager.py",
        "elif subscription.sub_version > known.sub_version:",
        "else:",
        "broker/test_consumer_manager.py",
    ),
    Mutant(
        "broker/groups/memberships.py",
        "if client.last_update_ms < before_ms",
        "if client.last_update_ms <= before_ms",
        "broker/test_housekeeping.py",
    ),
    Mutant(
        "broker/processor/consumer_manage.py",
        "        if header.commit_offset < 0:",
        "        if header.commit_offset < -1:",
        "broker/processor/test_consumer_manage.py",
    ),
    # Delays and timers
    Mutant(
        "broker/delay/schedule_service.py",
        "level.offset = offset if refused is None else refused",
        "level.offset = offset",
        "broker/test_schedule_service.py broker/test_schedule_turns.py",
    ),
    Mutant(
        "broker/delay/schedule_service.py",
        "        offset = min(max(level.offset, low), high)\n",
        "        offset = min(level.offset, high)\n",
        "broker/test_schedule_turns.py",
    ),
    Mutant(
        "broker/delay/delayed_message.py",
        "    if topic in _FORBIDDEN:",
        "    if False:",
        "broker/test_schedule_service.py",
    ),
    Mutant(
        "broker/timer/deliveries.py",
        "end_ms = min(end_ms, due_of(first_cancel))",
        "end_ms = max(end_ms, due_of(first_cancel))",
        "broker/timer/test_service.py broker/timer/test_rolling.py",
    ),
    # Transactions
    Mutant(
        "broker/transaction/check_service.py",
        "if times >= self.check_max or (times and age_ms > self.reserved_ms):",
        "if times > self.check_max or (times and age_ms > self.reserved_ms):",
        "broker/transaction/test_check_service.py",
    ),
    Mutant(
        "broker/processor/end_transaction.py",
        "        if place.physical_offset != header.commit_log_offset:",
        "        if place.physical_offset < 0:",
        "broker/processor/test_end_transaction.py",
    ),
    Mutant(
        "broker/transaction/verdicts.py",
        "commits=commits and is_last)",
        "commits=commits)",
        "broker/transaction/test_key_verdicts.py",
    ),
    # Topics and tables
    Mutant(
        "broker/topics/topic_deletion.py",
        "                await self._offsets.durable()\n",
        "",
        "broker/test_topic_deletion.py broker/test_power_cut.py",
    ),
    Mutant(
        "broker/tables/persist.py",
        "                failure = error\n",
        "                pass\n",
        "broker/test_persist.py",
    ),
    Mutant(
        "broker/tables/persist.py",
        "served = [done for change, done in self._waiters if change <= tried]",
        "served = [done for change, done in self._waiters if change < tried]",
        "broker/test_persist.py",
    ),
    # Access
    Mutant(
        "broker/access/control.py",
        "if row.level is Level.ADMIN and not account.is_admin:",
        "if row.level is Level.ADMIN and not account.reads_all:",
        "broker/access/test_control.py",
    ),
    Mutant(
        "broker/access/control.py",
        "if not self._is_signed(account.secret_key, fields, request.body, "
        'fields.get(SIGNATURE, "")):',
        'if not self._is_signed(account.secret_key, fields, b"", fields.get(SIGNATURE, "")):',
        "broker/access/test_control.py",
    ),
    Mutant(
        "broker/access/control.py",
        "        if kind is not Kind.TOPIC or right != PUB:",
        "        if kind is not Kind.TOPIC:",
        "broker/access/test_control.py",
    ),
    Mutant(
        "broker/base/addresses.py",
        "        if self._everything:\n            return True\n        if isinstance",
        "        if isinstance",
        "broker/base/test_addresses.py",
    ),
    Mutant(
        "broker/access/rights.py",
        '_account(_C.CONSUMER_SEND_MSG_BACK, _group("group"), _stored(SUB)),',
        "_account(_C.CONSUMER_SEND_MSG_BACK, _stored(SUB)),",
        "broker/access/test_rights.py test_reference_pages.py",
    ),
    # Messages in flight
    Mutant(
        "broker/pop/in_flight.py",
        "            self._per_group - queue.source.group.in_flight,\n",
        "",
        "broker/pop/test_limits.py",
    ),
    Mutant(
        "broker/pop/delivering.py",
        "elif attempt > take.attempts_max:",
        "elif attempt >= take.attempts_max:",
        "broker/pop/test_service.py",
    ),
    Mutant(
        "broker/pop/registry.py",
        "queue = PopQueue(source, queue_id, min(offset, end))",
        "queue = PopQueue(source, queue_id, offset)",
        "broker/pop/test_limits.py",
    ),
    # Load, filters, RocketMQ 5's clients
    Mutant(
        "broker/net/fast_failure.py",
        "if limit is not None and waited_ms > limit[0]:",
        "if limit is not None and waited_ms >= limit[0]:",
        "broker/test_fast_failure.py",
    ),
    Mutant(
        "broker/grpc/validation.py",
        "        if kind not in types:",
        "        if False:",
        "broker/grpc/test_validation.py",
    ),
    Mutant(
        "broker/grpc/validation.py",
        "opened = reader.decompress(body, self._body_max + 1)",
        "opened = reader.decompress(body)",
        "broker/grpc/test_sending.py",
    ),
    # Name server
    Mutant(
        "broker/namesrv/route_info.py",
        "if info.last_update_s < limit_s and not info.is_own:",
        "if info.last_update_s < limit_s:",
        "broker/namesrv/test_route_info.py",
    ),
    Mutant(
        "broker/namesrv/route_info.py",
        "        if connection is not None and connection not in known.connections:\n"
        "            return False\n",
        "",
        "broker/namesrv/test_route_info.py",
    ),
    Mutant(
        "broker/namesrv/route_info.py",
        "perm = READ_WRITE if allowed else data.perm & ~PermName.PERM_WRITE",
        "perm = data.perm | PermName.PERM_WRITE if allowed else data.perm & ~PermName.PERM_WRITE",
        "broker/namesrv/test_admin.py",
    ),
    Mutant(
        "broker/namesrv/route_info.py",
        "if topic not in self._queues.get(name, _NO_QUEUES):  # it has not come back",
        "if True:",
        "broker/namesrv/test_route_info.py",
    ),
    Mutant(
        "broker/namesrv/route_info.py",
        "self._forget_some(TURN_TOPICS)",
        "self._forget_some(BROKER_TOPICS_MAX)",
        "broker/namesrv/test_route_info.py",
    ),
    # Replicas
    Mutant(
        "broker/replication/failover/in_sync.py",
        "self.confirmed = max(self.confirmed, min(ends))",
        "self.confirmed = max(self.confirmed, max(ends))",
        "broker/replication/test_in_sync.py",
    ),
    Mutant(
        "broker/replication/failover/in_sync.py",
        "return self.durable_end(replica) >= max(self.confirmed, self._start)",
        "return self.durable_end(replica) >= self.confirmed",
        "broker/replication/test_in_sync.py",
    ),
    Mutant(
        "broker/replication/failover/in_sync.py",
        "return self.members if self.change is None else self.members | self.change.members",
        "return self.members if self.change is None else self.change.members",
        "broker/replication/test_in_sync.py",
    ),
    Mutant(
        "broker/replication/failover/terms.py",
        "return lineage[place + 1].start if place + 1 < len(lineage) else log_end",
        "return log_end",
        "broker/replication/test_terms.py",
    ),
    Mutant(
        "broker/replication/failover/replica_state.py",
        "self._candidacy.let_others_try()\n        self._follow(",
        "pass\n        self._follow(",
        "broker/replication/test_replica_state.py",
    ),
    Mutant(
        "broker/replication/failover/replica_log.py",
        "return min(self.confirmed, self.durable_end)",
        "return self.durable_end",
        "broker/replication/test_replica_state.py",
    ),
    Mutant(
        "broker/replication/ha/replica_acks.py",
        "if acknowledged < 0 or end_offset - acknowledged >= self._behind_max:",
        "if acknowledged < 0 or end_offset - acknowledged > self._behind_max:",
        "broker/replication/test_replica_acks.py",
    ),
)
