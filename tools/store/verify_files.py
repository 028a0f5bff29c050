"""The files of a store by themselves: names, sizes, gaps, and the small ones' content."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.sidecar import Kind, decode_sidecar
from skylarkmq.protocol.flags import validate_topic
from skylarkmq.store.checkpoint import FIELDS, FILE_SIZE
from skylarkmq.store.queue.consume_queue import UNIT_SIZE
from skylarkmq.store.stopped.reader import (
    NumberedFile,
    QueueKey,
    StoppedStore,
    is_numbered,
    is_queue_id,
)
from skylarkmq.tools.store.findings import Findings
from skylarkmq.tools.store.tables import BACKUP, TABLES, read_table, readable

KNOWN: Final = frozenset(
    (
        *("commitlog", "consumequeue", "consumequeue_ext", "index", "config"),
        *("checkpoint", "abort", "lock", "skylarkmq"),
        *("transaction", "timerwheel", "timerlog"),
    )
)
MOVE: Final = "move it out of the folder: brokers refuse to start with it"
_GROUP_SEPARATOR: Final = "@"


def check_files(store: StoppedStore, findings: Findings) -> None:
    """Look at everything that needs no walk over the log."""
    if store.is_unclean:
        findings.warning(
            "store.unclean",
            store.paths.abort,
            0,
            "the store was not stopped cleanly, or it failed",
            "the next start of a broker recovers it",
        )
    for name in store.names(store.paths.root):
        if name not in KNOWN:
            findings.info(
                "store.foreign", store.paths.root / name, 0, "no file of a store", "none is needed"
            )
    _check_log(store, findings)
    _check_queue_folders(store, findings)
    _check_index(store, findings)
    _check_small(store, findings)
    for name in TABLES:
        _check_table(store, findings, name)


def _check_log(store: StoppedStore, findings: Findings) -> None:
    folder = store.paths.commit_log
    _check_names(store, findings, folder, "log.foreign")
    _check_row(findings, "log", store.log_files, store.sizes.log)


def _check_names(store: StoppedStore, findings: Findings, folder: Path, kind: str) -> None:
    for name in store.names(folder):
        if not is_numbered(name):
            findings.error(kind, folder / name, 0, "its name is not 20 digits", MOVE)


def _check_row(findings: Findings, what: str, files: list[NumberedFile], size: int) -> None:
    """Files that should follow each other without a gap, all of one size."""
    for before, file in zip([None, *files], files, strict=False):
        if file.size != size:
            findings.error(
                f"{what}.size",
                file.path,
                file.size,
                f"it has {file.size} bytes, files of this kind have {size}",
                "put back the whole file; an empty last one may be removed",
            )
        if file.start % size:
            findings.error(f"{what}.name", file.path, 0, f"its name is no multiple of {size}", MOVE)
        if before is not None and before.start + size != file.start:
            findings.error(
                f"{what}.gap",
                file.path,
                0,
                f"files from offset {before.start + size} up to this one are missing",
                "put them back; store salvage makes a sound store of the rest",
            )


def _check_queue_folders(store: StoppedStore, findings: Findings) -> None:
    for base in (store.paths.consume_queue, store.paths.consume_queue_ext):
        for topic in store.names(base):
            why = validate_topic(topic)
            if why is not None or not store.files.is_folder(base / topic):
                findings.error("queue.foreign", base / topic, 0, why or "it is no folder", MOVE)
                continue
            for name in store.names(base / topic):
                path = base / topic / name
                if not is_queue_id(name) or not store.files.is_folder(path):
                    findings.error("queue.foreign", path, 0, "it is no queue's folder", MOVE)
                else:
                    _check_names(store, findings, path, "queue.foreign")
    for queue in store.queues.values():
        _check_row(findings, "queue", queue.files, store.sizes.queue)
        _check_row(findings, "ext", queue.ext_files, store.sizes.ext)
    if store.sizes.queue % UNIT_SIZE:
        findings.error(
            "queue.size",
            store.paths.consume_queue,
            0,
            f"queue files have {store.sizes.queue} bytes, no multiple of {UNIT_SIZE}",
            "put back whole files",
        )


def _check_index(store: StoppedStore, findings: Findings) -> None:
    for name in store.names(store.paths.index):
        path = store.paths.index / name
        if not (name.isascii() and name.isdigit()):
            findings.warning("index.foreign", path, 0, "its name is no number", "move it away")
            continue
        try:
            store.index_file(name).let_go()
        except CorruptFileError as error:
            findings.error(
                "index.size",
                path,
                error.position,
                error.why,
                "remove it and build the index again: store rebuild --only index --write",
            )


def _check_small(store: StoppedStore, findings: Findings) -> None:
    path = store.paths.checkpoint
    if not store.files.exists(path):
        findings.info("checkpoint.none", path, 0, "there is none", "a recovery takes longer")
    elif store.files.size(path) < FILE_SIZE:
        size = store.files.size(path)
        told = findings.warning if size < FIELDS.size else findings.info
        told(
            "checkpoint.size", path, size, f"it has {size} bytes of {FILE_SIZE}",
            "the next checkpoint mends it",
        )  # fmt: skip
    for kind, own, cure in (
        (Kind.PROFILE, store.paths.profile, "remove it; the files tell the sizes too"),
        (Kind.RECOVERY_POINT, store.paths.recovery_point, "the next checkpoint mends it"),
        (Kind.FLUSHED_OFFSET, store.paths.flushed_offset, "the next start mends it"),
    ):
        if not store.files.exists(own):
            continue
        try:
            decode_sidecar(own, kind, store.files.read_all(own))
        except CorruptFileError as error:
            findings.warning("own.damage", own, error.position, error.why, cure)


def _check_table(store: StoppedStore, findings: Findings, name: str) -> None:
    path = store.paths.config / name
    main = read_table(store, path)
    backup = read_table(store, path.with_name(name + BACKUP))
    has_backup = backup is not None and backup.content is not None
    if main is None:
        if backup is not None:
            told = findings.warning if has_backup else findings.error
            told("table.missing", path, 0, "it is missing, its backup is there",
                 "brokers take the backup" if has_backup else "put back a good copy")  # fmt: skip
    elif main.content is None:
        told = findings.warning if has_backup else findings.error
        told(
            "table.damage",
            path,
            main.position,
            main.why,
            f"brokers take {name}{BACKUP}" if has_backup else "put back a good copy",
        )
    if backup is not None and backup.content is None:
        findings.warning(
            "table.backup", backup.path, backup.position, backup.why,
            "the next change of the table replaces it",
        )  # fmt: skip


def check_consumer_offsets(
    store: StoppedStore, findings: Findings, ends: dict[QueueKey, int]
) -> None:
    """Tell of groups whose next message lies behind the end of its queue."""
    table: Any = readable(store, "consumerOffset.json").get("offsetTable")
    if not isinstance(table, dict):
        return
    for name, offsets in cast("dict[str, Any]", table).items():
        if not isinstance(offsets, dict):
            continue
        topic, _, group = name.partition(_GROUP_SEPARATOR)
        for queue_id, offset in cast("dict[str, Any]", offsets).items():
            key = topic, int(queue_id) if str(queue_id).isdigit() else -1
            if isinstance(offset, int) and key in ends and offset > ends[key]:
                findings.warning(
                    "table.offset-ahead",
                    store.paths.config / "consumerOffset.json",
                    0,
                    f"group {group} goes on with message {offset} of queue {queue_id} of {topic}, "
                    f"which ends at {ends[key]}",
                    "the group would wait; reset its offset",
                )
