"""Lines of the SDK and of the integrations."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MUTANTS: Final = (
    # Consumers
    Mutant(
        "client/consumer/allocate.py",
        "start = index * share + min(index, rest)",
        "start = index * share + min(index + 1, rest)",
        "client/consumer/test_allocate.py",
    ),
    Mutant(
        "client/consumer/allocate.py",
        "places[index if index < len(places) else 0]",
        "places[index if index < len(places) else -1]",
        "client/consumer/test_allocate.py",
    ),
    Mutant(
        "client/consumer/last_read.py",
        "if self._compared_on.get(address) is connection:",
        "if True:",
        "client/consumer/test_last_read.py",
    ),
    Mutant(
        "client/consumer/local_offsets.py",
        "if read is not None and read.offset >= offset:",
        "if False:",
        "client/consumer/test_local_offsets.py",
    ),
    Mutant(
        "client/consumer/offset_store.py",
        'if is_retry_topic(queue.topic) or start_from.where == "first":',
        'if start_from.where == "first":',
        "client/consumer/test_offset_store.py",
    ),
    Mutant(
        "client/consumer/offset_store.py",
        "        if self._locks is not None and not self._locks.holds(queue):",
        "        if False:",
        "client/consumer/test_offset_store.py client/consumer/test_orderly.py",
    ),
    Mutant(
        "client/consumer/peek_reader.py",
        "if queue not in self._feeds and queue not in self._left_out:",
        "if queue not in self._feeds:",
        "client/consumer/test_peek_reader.py",
    ),
    Mutant(
        "client/consumer/peek_reader.py",
        "if len(errors) == len(by_broker) and errors:",
        "if False:",
        "client/consumer/test_peek_reader.py",
    ),
    Mutant(
        "client/consumer/queue_locks.py",
        "self._until_s[queue] = asked_s + LOCK_LOST_S",
        "self._until_s[queue] = self._clock.monotonic() + LOCK_LOST_S",
        "client/consumer/test_queue_locks.py",
    ),
    Mutant(
        "client/consumer/queue_locks.py",
        "        if stray:\n            await self.release(stray)\n",
        "",
        "client/consumer/test_queue_locks.py",
    ),
    Mutant(
        "client/consumer/message_buffer.py",
        "                    self._wake(1)  # the wake-up was for somebody who can use it\n",
        "                    pass\n",
        "client/consumer/test_message_buffer.py",
    ),
    Mutant(
        "client/consumer/pull_service.py",
        "if process_queue.held_bytes >= self._bytes_share() or process_queue.span >= "
        "config.max_span:",
        "if process_queue.held_bytes >= self._bytes_share():",
        "client/consumer/test_pull_service.py",
    ),
    Mutant(
        "client/consumer/pull_service.py",
        "        if following < offset:\n",
        "        if following > offset:\n",
        "client/consumer/test_pull_service.py client/consumer/test_rebalance.py",
    ),
    Mutant(
        "client/consumer/pull_service.py",
        "            return False  # a slave may not have heard of the topic yet\n",
        "            pass\n",
        "client/consumer/test_pull_service.py client/consumer/test_pull_sources.py",
    ),
    Mutant(
        "client/consumer/local_offsets.py",
        "            if version < self._written_version:\n                return\n",
        "",
        "client/consumer/test_local_offsets.py",
    ),
    Mutant(
        "client/consumer/local_offsets.py",
        "                os.fsync(file.fileno())\n",
        "",
        "client/consumer/test_local_offsets.py",
    ),
    Mutant(
        "client/consumer/orderly.py",
        "        if process_queue.out_count:\n"
        "            return False  # its last ack offers it again\n",
        "",
        "client/consumer/test_orderly.py",
    ),
    Mutant(
        "client/consumer/orderly.py",
        "await self.revoke(sorted(lost), commit=False)",
        "await self.revoke(sorted(lost))",
        "client/consumer/test_orderly.py client/consumer/test_handover.py",
        "the store of offsets commits nothing of a queue whose lock is lost",
    ),
    # Producers
    Mutant(
        "client/producer/send_pipeline.py",
        "reached = not isinstance(error, ConnectionFailed) or error.reached",
        "reached = not isinstance(error, ConnectionFailed)",
        "client/test_send_pipeline.py client/test_send_cuts.py",
    ),
    Mutant(
        "client/producer/send_pipeline.py",
        "is_spent = not is_away and send.try_count > self._config.retries",
        "is_spent = not is_away and send.try_count >= self._config.retries",
        "client/test_send_pipeline.py",
    ),
    Mutant(
        "client/producer/send_pipeline.py",
        "out_of_time = self._monotonic() >= send.end_s",
        "out_of_time = False",
        "client/test_send_pipeline.py client/test_producer.py",
    ),
    Mutant(
        "client/producer/in_flight.py",
        "if generation <= flush.generation:",
        "if generation < flush.generation:",
        "client/test_in_flight.py",
    ),
    Mutant(
        "client/producer/sender.py",
        "        if len(body) >= self._compress_over:\n"
        "            body, flags = await self._compressed_aside(body)",
        "        if len(body) > self._compress_over:\n"
        "            body, flags = await self._compressed_aside(body)",
        "client/test_producer.py",
    ),
    Mutant(
        "client/producer/lanes.py",
        "return fault is None or now_s >= fault.until_s",
        "return fault is None or now_s <= fault.until_s",
        "client/test_latency_fault.py",
    ),
    Mutant(
        "client/producer/reply_table.py",
        "return len(self._waiting) >= REQUESTS_MAX",
        "return len(self._waiting) > REQUESTS_MAX",
        "client/test_reply_table.py",
    ),
    Mutant(
        "client/producer/checks.py",
        "                state = ended.state  # decided here while the check looked: it could not "
        "know\n",
        "                pass\n",
        "client/test_transaction_check.py",
    ),
    # Integrations
    Mutant(
        "integrations/kombu/hub.py",
        "return self.cancelled and not self.users and not self._out",
        "return self.cancelled and not self.users",
        "integrations/test_kombu.py",
    ),
    Mutant(
        "integrations/kombu/hub.py",
        "                if held.received is None or held.received.queue not in gone\n",
        "                if held.received is None or held.received.queue in gone\n",
        "integrations/test_kombu.py",
    ),
    Mutant(
        "integrations/kombu/hub.py",
        "queues = 1 if topic.startswith(EXCHANGE) else self._queues",
        "queues = self._queues",
        "integrations/test_kombu.py",
    ),
    Mutant(
        "integrations/faststream/message.py",
        "reply_to=asker or properties.get(REPLY_TO,",
        "reply_to=properties.get(REPLY_TO,",
        "integrations/test_faststream.py integrations/test_faststream_delivery.py",
    ),
    Mutant(
        "integrations/faststream/subscriber.py",
        "if self.running and self.ack_policy is not AckPolicy.MANUAL:",
        "if self.running:",
        "integrations/test_faststream.py integrations/test_faststream_delivery.py",
    ),
)
