"""JSON tables: the fall-back to `.bak`, and who is freed by which write."""

import random
from pathlib import Path

import msgspec
import pytest

from skylarkmq.broker.tables.json_table import load_table, table_text
from skylarkmq.broker.tables.persist import TableFile
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.table_file import Text
from skylarkmq.protocol.bodies.group import ConsumerOffsetSerializeWrapper
from skylarkmq.protocol.bodies.text import DataVersion
from tests.support.manual_clock import settle
from tests.support.memory_files import MemoryFiles, Tables
from tests.support.workers import rest

PATH = Path("/store/config/consumerOffset.json")
BACKUP = PATH.with_name("consumerOffset.json.bak")
BROKEN = PATH.with_name("consumerOffset.json.broken")
GOOD = b'{"offsetTable":{"T@g":{"0":7}}}'
OLDER = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:5,1:4\n\t\t}\n\t}\n}'  # as RocketMQ writes it


def _load(texts: dict[Path, bytes]) -> tuple[dict[int, int] | None, MemoryFiles]:
    files = MemoryFiles(texts)
    loaded = load_table(files, PATH, ConsumerOffsetSerializeWrapper)
    return (None if loaded is None else loaded.offset_table["T@g"]), files


async def test_the_file_wins_over_its_backup() -> None:
    assert _load({PATH: GOOD, BACKUP: OLDER})[0] == {0: 7}


async def test_nothing_there_is_an_empty_start() -> None:
    assert _load({})[0] is None


async def test_a_missing_file_gives_way_to_its_backup() -> None:
    assert _load({BACKUP: OLDER})[0] == {0: 5, 1: 4}


@pytest.mark.parametrize("text", [b"", b" \n", b'{"offsetTable":{"T@g":{0:7', b"[]", b"\xff\xfe"])
async def test_a_bad_file_gives_way_to_its_backup_and_never_replaces_it(text: bytes) -> None:
    offsets, files = _load({PATH: text, BACKUP: OLDER})
    assert offsets == {0: 5, 1: 4}
    assert files.texts == {BROKEN: text, BACKUP: OLDER}
    files.replace(PATH, GOOD, backup=True)
    assert files.texts[BACKUP] == OLDER


@pytest.mark.parametrize("backup", [None, b"", b"{"])
async def test_a_bad_file_without_a_good_backup_ends_the_start_and_stays(
    backup: bytes | None,
) -> None:
    texts = {PATH: b'{"offsetTable":{"T@g":{0:7', **({} if backup is None else {BACKUP: backup})}
    files = MemoryFiles(texts)
    before = dict(files.texts)
    with pytest.raises(CorruptFileError) as caught:
        load_table(files, PATH, ConsumerOffsetSerializeWrapper)
    assert caught.value.path == (BACKUP if backup else PATH)
    assert f"{PATH} at byte " in str(caught.value), "both are named"
    assert "put a good copy in" in str(caught.value)
    assert files.texts == before


async def test_an_empty_file_without_a_backup_is_an_empty_start() -> None:
    assert _load({PATH: b""})[0] is None


async def test_a_bad_backup_ends_the_start_with_file_and_position() -> None:
    with pytest.raises(CorruptFileError) as caught:
        _load({BACKUP: b'{"offsetTable":{"T@g":{0:7 ? }}}'})
    assert caught.value.path == BACKUP
    assert caught.value.position == 27


def _mutated(text: bytes, rng: random.Random) -> bytes:
    data, place = bytearray(text), rng.randrange(len(text))
    match rng.choice(["flip", "zero", "cut", "extend", "nothing"]):
        case "flip":
            data[place] ^= 1 << rng.randrange(8)
        case "zero":
            data[place:] = bytes(len(data) - place)
        case "cut":
            del data[place:]
        case "extend":
            data += text[:place] or b"\x00"
    return bytes(data)


async def test_whatever_rots_a_start_reads_one_of_the_two_or_names_file_and_position() -> None:
    rng, outcomes = random.Random(5), set[str]()
    for _ in range(500):
        texts = {PATH: _mutated(GOOD, rng), BACKUP: _mutated(OLDER, rng)}
        files = MemoryFiles(dict(texts))
        try:
            loaded = load_table(files, PATH, ConsumerOffsetSerializeWrapper)
        except CorruptFileError as error:
            assert f"{error.path} at byte {error.position}: " in str(error)
            assert "\n" not in str(error)
            assert files.texts == texts, "nothing was changed"
            outcomes.add("refused")
        else:
            outcomes.add("read" if loaded is not None else "empty")
            assert loaded is not None or not any(text.strip() for text in texts.values())
        assert set(texts.values()) <= set(files.texts.values()), "nothing is lost"
    assert outcomes >= {"read", "refused"}


async def test_text_is_standard_json_with_a_line_for_each_row() -> None:
    version = DataVersion(counter=3, timestamp=1)
    text = table_text("offsetTable", {"T@g": {0: 7, 1: 2}, "U@g": {}}, version)
    assert text == (
        b'{\n\t"dataVersion":{"counter":3,"timestamp":1},\n\t"offsetTable":{\n'
        b'\t\t"T@g":{"0":7,"1":2},\n\t\t"U@g":{}\n\t}\n}'
    )
    assert msgspec.json.decode(table_text("offsetTable", {}, None)) == {"offsetTable": {}}


async def test_text_inside_a_row_can_not_break_the_lines() -> None:
    rows = {'a},"b': {"x": '},"'}, "c": {"y": 1}}
    text = table_text("t", rows, None)
    assert msgspec.json.decode(text) == {"t": rows}
    assert text.count(b"\n") == 5


class _Counted:
    """A table that is one number, and what its waiters heard."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.value = 0
        self.heard: list[tuple[str, object]] = []
        self.file = TableFile(self.tables.writer, PATH, self._take)

    def _take(self) -> Text:
        value = self.value
        return lambda: b"%d" % value

    def change(self) -> None:
        self.value += 1
        self.file.changed()

    def wait(self, name: str) -> None:
        self.file.persisted(lambda error: self.heard.append((name, error)))


async def test_nothing_pending_is_durable_at_once() -> None:
    table = _Counted()
    table.wait("a")
    assert table.heard == [("a", None)]


async def test_one_write_frees_all_who_waited_for_its_changes() -> None:
    table = _Counted()
    table.change()
    table.wait("a")
    table.wait("b")
    assert table.heard == [] and table.file.pending
    await rest(table.tables.worker)
    assert table.heard == [("a", None), ("b", None)]
    assert table.tables.files.texts[PATH] == b"1"
    assert not table.file.pending
    await rest(table.tables.worker)
    assert table.tables.files.write_count == 1


async def test_a_change_during_a_write_waits_for_the_next_one() -> None:
    table = _Counted()
    table.change()
    table.wait("first")
    await settle()
    table.tables.worker.run_job()
    table.change()
    table.change()
    table.wait("second")
    table.tables.worker.deliver()
    await settle()
    assert table.heard == [("first", None)] and table.file.pending
    await rest(table.tables.worker)
    assert table.heard == [("first", None), ("second", None)]
    assert table.tables.files.texts[PATH] == b"3"
    assert table.tables.files.write_count == 2


async def test_a_failed_write_is_told_and_stays_pending_until_the_next_try() -> None:
    table = _Counted()
    failure = OSError(28, "No space left on device")
    table.tables.files.error = failure
    table.change()
    table.wait("a")
    await rest(table.tables.worker)
    assert table.heard == [("a", failure)] and table.file.pending
    table.tables.files.error = None
    table.wait("b")
    await rest(table.tables.worker)
    assert table.heard[1] == ("b", None) and not table.file.pending


async def test_a_marked_change_waits_until_it_is_asked_for() -> None:
    table = _Counted()
    table.value = 1
    table.file.mark()
    assert table.tables.worker.idle and table.file.pending
    table.file.write()
    await settle()
    table.tables.worker.run_job()
    table.value = 2
    table.file.mark()
    await rest(table.tables.worker)
    assert table.tables.files.texts[PATH] == b"1" and table.file.pending
    table.file.write()
    await rest(table.tables.worker)
    assert table.tables.files.texts[PATH] == b"2"
