"""The board of the log, of the disk, and of how quick it is."""

from __future__ import annotations

from deploy.grafana.style import (
    ACK,
    ANY,
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    DISK,
    EACH,
    FAR,
    FSYNC,
    HERE,
    PER_SECOND,
    RATIO,
    SECONDS,
    Board,
    figure,
    graph,
    node,
    ours,
    quantile,
    rate,
)


def offset(mark: str) -> str:
    """Return a place in the log, without its label."""
    return f"sum by (cluster, {EACH}) ({ours('skylarkmq_store_offset_bytes', mark=mark)})"


USED = ours("skylarkmq_store_disk_used_ratio")
FLUSH_BEHIND = f"{offset('max')} - {offset('flushed')}"
NOW = [
    figure(
        "Fullest disk", "Above 85 % the oldest messages go, above 90 % sends are refused.",
        f"max({USED})", RATIO, DISK,
    ),
    figure(
        "In four hours", "Where the fullest disk will be if it goes on like the last hour.",
        f"max(predict_linear({USED}[1h], 4 * 3600))", RATIO, DISK,
    ),
    figure(
        "Oldest message", "How long the oldest message of the log has been stored.",
        f"max({node('rocketmq_storage_message_reserve_time_milliseconds')}) / 1000", SECONDS,
    ),
    figure("Not on the disk", "Bytes that are not flushed.", f"max({FLUSH_BEHIND})", BYTES, FAR),
    figure(
        "Failed writes", "Writes and flushes that failed; one ends the writing.",
        f"sum({ours('skylarkmq_store_errors_total')})", steps=ANY,
    ),
    figure(
        "Corrupt records", "Damaged records that a reader wanted; the log names each.",
        f"sum({ours('skylarkmq_store_corrupt_records_total')})", steps=ANY,
    ),
]  # fmt: skip
LOAD = [
    graph(
        "Records", "Records written a second, by clients, retries and delays.", PER_SECOND,
        (rate(ours("skylarkmq_store_appended_messages_total")), HERE),
    ),
    graph(
        "Bytes", "Bytes of records written a second.", BYTES_PER_SECOND,
        (rate(ours("skylarkmq_store_appended_bytes_total")), HERE),
    ),
    graph(
        "Reads from the disk", "Reads a second of what memory is not taken to hold.", PER_SECOND,
        (rate(ours("skylarkmq_store_cold_reads_total")), HERE),
    ),
]  # fmt: skip
LATENCY = [
    graph(
        "Flush", "Below it are 99 % of the flushes of the log.", SECONDS,
        (quantile(0.99, ours(FSYNC, file="commitlog"), EACH), HERE),
        steps=((0.5, "red"),),
    ),
    graph(
        "Acknowledgement", "Below it are 50 % and 99 % of the waits from append to "
        "acknowledgement, where acknowledgements wait.", SECONDS,
        (quantile(0.5, ours(ACK), EACH), f"{HERE} 50 %"),
        (quantile(0.99, ours(ACK), EACH), f"{HERE} 99 %"),
        steps=((1, "red"),),
    ),
    graph(
        "Group commit", "Messages acknowledged by one flush, on average.", COUNT,
        (
            f"{rate(ours('skylarkmq_store_group_commit_size_sum'))} / "
            f"{rate(ours('skylarkmq_store_group_commit_size_count'))}", HERE,
        ),
    ),
    graph(
        "Append", "Below it are 99 % of the times to write a batch.", SECONDS,
        (quantile(0.99, ours("skylarkmq_store_append_duration_seconds_bucket"), EACH), HERE),
    ),
    graph(
        "Commit of the pool", "Below it are 99 % of the times to write from the transient pool "
        "to the file.", SECONDS,
        (quantile(0.99, ours("skylarkmq_store_commit_duration_seconds_bucket"), EACH), HERE),
    ),
    graph(
        "Recovery", "How long the last recovery took.", SECONDS,
        (ours("skylarkmq_store_recovery_duration_seconds"), f"{HERE} {{{{mode}}}}"),
    ),
]  # fmt: skip
STATE = [
    graph(
        "Disk", "Used part of the disks of log and queues.", RATIO,
        (USED, f"{HERE} {{{{kind}}}}"), steps=DISK,
    ),
    graph(
        "Log", "Bytes from the first message to the last.", BYTES,
        (f"{offset('max')} - {offset('min')}", HERE),
    ),
    graph("Not on the disk", "Bytes that are not flushed.", BYTES, (FLUSH_BEHIND, HERE)),
    graph(
        "Key index", "Bytes of the log whose keys are not in the index yet: queries by key do "
        "not find them.", BYTES,
        (ours("skylarkmq_store_index_behind_bytes"), HERE),
    ),
    graph(
        "Pool", "Buffers of the transient pool; none available: sends are refused with 2.",
        COUNT, (ours("skylarkmq_store_pool_buffers"), f"{HERE} {{{{state}}}}"),
    ),
    graph(
        "Removed files", "Files removed in an hour, by age or because the disk was full.", COUNT,
        (
            f"increase({ours('skylarkmq_store_files_deleted_total')}[1h])",
            f"{HERE} {{{{kind}}}}",
        ),
    ),
]  # fmt: skip
TROUBLE = [
    graph(
        "Failed writes", "Writes and flushes that failed; one ends the writing.", COUNT,
        (ours("skylarkmq_store_errors_total"), f"{HERE} {{{{operation}}}}"), steps=ANY,
    ),
    graph(
        "Corrupt records", "Damaged records that a reader wanted and did not get.", COUNT,
        (ours("skylarkmq_store_corrupt_records_total"), HERE), steps=ANY,
    ),
    graph(
        "Sends refused for the disk", "Sends refused a second because the disk is too slow.",
        PER_SECOND,
        (
            "sum by (broker, cause) "
            f"({rate(ours('skylarkmq_requests_rejected_total', kind='send'))})",
            "{{broker}} {{cause}}",
        ),
    ),
    graph(
        "Late files", "Files of the log in an hour that were not ready when messages needed "
        "them.", COUNT,
        (f"increase({ours('skylarkmq_store_late_allocations_total')}[1h])", HERE),
    ),
    graph(
        "Cut off by recovery", "Bytes that the last recovery cut off: records that a crash "
        "left unfinished.", BYTES,
        (ours("skylarkmq_store_recovery_truncated_bytes"), f"{HERE} {{{{kind}}}}"),
    ),
]  # fmt: skip
BOARD = Board(
    "skylarkmq-store", "SkylarkMQ: store and disk", "The log, the disk, and how quick it is.",
    [("Now", NOW), ("Load", LOAD), ("Latency", LATENCY), ("State", STATE), ("Trouble", TROUBLE)],
)  # fmt: skip
