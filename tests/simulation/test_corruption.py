"""Files that rot, or that somebody moved: the store starts or refuses in one line, and never lies.

Each case changes one file of a stored store (a flipped bit, a zeroed page, a cut, a longer file, a
file doubled, removed, or exchanged with another one) and starts on it. What is handed out after
that must be what was stored, at its offset; whatever the change did not touch must be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pytest

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.checkpoint import Checkpoint
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.results import GetMessageStatus, PutMessageStatus
from skylarkmq.store.upkeep import recovery
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

QUEUES = (("A", 0), ("A", 1), ("B", 0))
KINDS = ("flip", "zero", "cut", "extend", "double", "remove", "exchange")
KILL = CrashState(Keep.KILL)
Stored = dict[tuple[str, int, int], tuple[bytes, int, int]]  # -> body, offset in the log, size


@dataclass
class Case:
    """One change of one store."""

    disk: CrashDisk
    stored: Stored
    name: str  # of the changed file, below the root
    what: str
    # Bytes of the log that are not what they were.
    harmed: list[tuple[int, int]]
    point: int  # everything below it was on the disk


@cache
def stores() -> tuple[tuple[CrashDisk, Stored, int], ...]:
    """A store that was stopped and one that was killed, and the size of their log files."""
    return tuple((*_store(clean=clean), 131072) for clean in (True, False))


def _store(*, clean: bool) -> tuple[CrashDisk, Stored]:
    rng, rig = Random(11), StoreRig(CrashDisk()).start()
    bodies: list[tuple[str, int, bytes]] = []
    for number in range(260):
        topic, queue_id = QUEUES[rng.randrange(3) if number > 60 else 0]
        body = b"%06d" % number + rng.randbytes(rng.randrange(3000))
        properties = b"KEYS\x01k%d\x02UNIQ_KEY\x01u%d\x02TAGS\x01t" % (number % 9, number)
        bodies.append((topic, queue_id, body))
        rig.put(topic, queue_id, body, properties=properties)
        if number in (200, 240):
            for _ in range(2):
                rig.clock.advance(61)
                rig.workers.run_all()
    rig.clock.advance(1.5)
    rig.workers.run_all()
    stored: Stored = {}
    for (topic, queue_id, body), result in zip(bodies, rig.results, strict=True):
        record = rig.store.commit_log.read(result.physical_offset)
        assert record is not None
        key = topic, queue_id, result.queue_offset
        stored[key] = body, result.physical_offset, record.size
    if clean:
        rig.stop()
    return rig.files, stored


def cases(seeds: range) -> Iterator[tuple[int, Case]]:
    for seed in seeds:
        rng = Random(seed)
        base, stored, log_size = rng.choice(stores())
        yield seed, _changed(base.crash(KILL, rng), stored, log_size, rng)


def _changed(disk: CrashDisk, stored: Stored, log_size: int, rng: Random) -> Case:
    contents = disk.contents()
    folders = sorted({str(Path(name).parent) for name in contents})
    folder = rng.choice(folders)
    names = [name for name in contents if str(Path(name).parent) == folder]
    name = rng.choice(names)
    path, size = disk.root / name, len(contents[name])
    kind = rng.choice(KINDS)
    is_log = folder == "commitlog"
    start = int(path.name) if is_log else 0
    harmed = [(start, start + log_size)]
    place = rng.randrange(size) if size else 0
    if rng.random() < 0.4:
        place = min(place, 2000)  # most of a file is never written
    if kind == "flip" and size:
        _write(disk, path, place, bytes([contents[name][place] ^ 1 << rng.randrange(8)]))
        harmed = [(start + place, start + place + 1)]
    elif kind == "zero" and size:
        length = rng.choice([512, 4096, size])
        place -= place % length
        _write(disk, path, place, bytes(min(length, size - place)))
        harmed = [(start + place, start + place + length)]
    elif kind in ("cut", "extend"):
        _resize(disk, path, rng.randrange(size + 1) if kind == "cut" else size + place + 1)
    elif kind == "double":
        other = path.with_name(_next_name(path.name, rng))
        disk.replace(other, contents[name], backup=False)
        harmed = [(int(other.name), int(other.name) + log_size)] if is_log else []
    elif kind == "remove":
        disk.unlink(path)
    elif kind == "exchange":
        twin = rng.choice(names)
        disk.replace(path, contents[twin], backup=False)
        disk.replace(disk.root / twin, contents[name], backup=False)
        if is_log:
            harmed.append((int(Path(twin).name), int(Path(twin).name) + log_size))
        name += f" with {twin}"
    paths = StorePaths(disk.root)
    point = Checkpoint(disk, paths.checkpoint, paths.recovery_point).load().commit_log_offset
    return Case(disk, stored, name, kind, harmed if is_log else [], point)


def _next_name(name: str, rng: Random) -> str:
    if not name.isdigit():
        return name + rng.choice([".bak", "~", "2"])
    step = rng.choice([1, 2000, 4000, 131072, 131072 * 7])
    return f"{int(name) + step:0{len(name)}d}"


def _write(disk: CrashDisk, path: Path, position: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(data, position)
    file.datasync()
    file.close()


def _resize(disk: CrashDisk, path: Path, size: int) -> None:
    file = disk.open(path)
    file.truncate(size)
    file.datasync()
    file.close()


def _is_harmed(case: Case, offset: int, size: int) -> bool:
    return any(begin < offset + size and offset < end for begin, end in case.harmed)


def _harmed_bodies(case: Case) -> list[bytes]:
    return [body for body, offset, size in case.stored.values() if _is_harmed(case, offset, size)]


def check(case: Case) -> str:
    """Start, and hold what is handed out to what was stored; how it went."""
    rig = StoreRig(case.disk)
    before = case.disk.contents()
    try:
        rig.start()
    except StoreError as error:
        text = str(error)
        assert "\n" not in text, text
        assert str(case.disk.root) in text, text
        if isinstance(error, CorruptFileError):
            assert f"{error.path} at byte {error.position}" in text
        after = case.disk.contents()
        kept = {name: data for name, data in before.items() if name.startswith("commitlog")}
        assert kept.items() <= after.items(), "a refusal leaves the log as it is"
        return "refused"
    report = rig.store.recovery
    assert report is not None
    if case.harmed:
        assert report.end_offset >= case.point, "what was on the disk was cut off"
    found = _read_all(rig)
    for key, body in found.items():
        if key in case.stored:
            assert body == case.stored[key][0], f"{key} has another body"
        else:  # no checksum covers the queue offset inside a record
            assert body in _harmed_bodies(case), f"{key} was never stored"
    for key, (_, offset, size) in case.stored.items():
        touched = _is_harmed(case, offset, size)
        if case.name.startswith("consumequeue") and not recovery.CHECK_SIZE:
            continue  # a unit that rots long after it was synced is not looked for
        if not touched and (offset + size <= report.end_offset or not case.harmed):
            assert key in found, f"{key} is gone"
    for topic, queue_id in QUEUES:
        known = [
            key[2] for key in found.keys() & case.stored.keys() if key[:2] == (topic, queue_id)
        ]
        end = max(known, default=-1)
        result = rig.put(topic, queue_id, b"new")
        assert result is not None
        assert result.status is PutMessageStatus.PUT_OK, result.why
        assert result.queue_offset > end, "an offset is given out again"
    rig.stop()
    again = StoreRig(case.disk).start()
    now = _read_all(again)
    assert {key: body for key, body in now.items() if body != b"new"} == found
    assert sum(body == b"new" for body in now.values()) == len(QUEUES)
    return "started"


def _read_all(rig: StoreRig) -> dict[tuple[str, int, int], bytes]:
    found: dict[tuple[str, int, int], bytes] = {}
    for topic, queue_id in QUEUES:
        offset = rig.store.min_offset(topic, queue_id)
        end = rig.store.max_offset(topic, queue_id)
        while offset < end:
            result = rig.store.get_message(topic, queue_id, offset, 32)
            if result.status is GetMessageStatus.FOUND:
                for each in decode_messages(b"".join(result.views)):
                    found[topic, queue_id, each.queue_offset] = each.body
            assert result.next_begin_offset > offset, result
            offset = result.next_begin_offset
    return found


def run(seeds: range) -> None:
    outcomes: dict[str, int] = {}
    for seed, case in cases(seeds):
        try:
            outcome = check(case)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {case.what} of {case.name}: {error!r}") from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes.keys() == {"started", "refused"}


@pytest.fixture(params=[0, recovery.CHECK_SIZE], ids=["trusting", "checking"])
def check_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing, and with everything, in front of the recovery point read again."""
    monkeypatch.setattr(recovery, "CHECK_SIZE", request.param)


@pytest.mark.usefixtures("check_size")
def test_a_changed_file_is_never_believed() -> None:
    run(range(60))


@pytest.mark.fault
@pytest.mark.usefixtures("check_size")
def test_many_changed_files() -> None:
    run(range(1000, 1400))
