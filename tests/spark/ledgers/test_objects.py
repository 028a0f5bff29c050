"""Small objects in a folder and in S3: whole, and changed only by who knows the last version."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from skylarkmq.spark.ledgers.objects import ChangedError, Objects, Stored, StoreObjects, objects_at
from skylarkmq.spark.storage import Location, StorageError
from tests.spark.support.s3_server import S3Server


def test_what_was_written_is_read(place: Location) -> None:
    objects = objects_at(place)
    assert (objects.read("a"), objects.names()) == (None, [])
    first = objects.write("a", b"1", None)
    assert objects.read("a") == Stored(b"1", first)
    second = objects.write("a", b"2", first)
    assert objects.read("a") == Stored(b"2", second)
    again = pickle.loads(pickle.dumps(objects))
    again.write("b", b"", None)
    assert again.read("b").data == b""
    assert objects.names() == ["a", "b"]
    objects_at(place.child("below")).write("c", b"3", None)
    for _ in range(2):
        objects.remove("a")
    assert objects.read("a") is None
    assert objects.names() == ["b", "below"]


def test_a_version_that_is_not_the_last_one_is_refused(place: Location) -> None:
    objects = objects_at(place)
    first = objects.write("a", b"1", None)
    second = objects.write("a", b"2", first)
    for tag in (None, first):
        with pytest.raises(ChangedError, match=r"place.*/a was written by another run"):
            objects.write("a", b"3", tag)
    objects.remove("a")
    with pytest.raises(ChangedError):
        objects.write("a", b"3", second)
    assert objects.names() == []


@pytest.mark.parametrize("is_new", [True, False])
def test_of_many_writers_one_wins(place: Location, is_new: bool) -> None:
    tag = None if is_new else objects_at(place).write("a", b"first", None)

    def write(number: int) -> str:
        try:
            return objects_at(place).write("a", f"by {number}".encode(), tag)
        except ChangedError:
            return ""

    with ThreadPoolExecutor(8) as pool:
        tags = [tag for tag in pool.map(write, range(8)) if tag]
    found = objects_at(place).read("a")
    assert found is not None
    assert tags == [found.tag]


class _Forgetful:
    """A store whose first put is done, and then not answered: the library tries again."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._puts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, *arguments: Any, **named: Any) -> Any:
        self._puts += 1
        if self._puts == 1:
            self._store.put(*arguments, **named)
        return self._store.put(*arguments, **named)


def test_a_put_that_was_tried_twice_is_one(s3_server: S3Server) -> None:
    objects = StoreObjects(Location.parse(s3_server.place(), s3_server.options, {}))
    objects._opened = _Forgetful(objects.place.store())  # type: ignore[assignment]
    tag = objects.write("a", b"1", None)
    objects._opened = _Forgetful(objects.place.store())  # type: ignore[assignment]
    assert objects.read("a") == Stored(b"1", tag)
    assert objects.write("a", b"2", tag) != tag


@contextmanager
def faulty(server: S3Server, kind: str) -> Iterator[Objects]:
    place, options = server.place(), dict(server.options)
    if kind == "credentials":
        options["AWS_SECRET_ACCESS_KEY"] = "not-the-secret-key"
    elif kind == "user":
        options["AWS_ACCESS_KEY_ID"] = "NOBODYSKEY"
    elif kind == "rights":
        options = server.reader_options
    elif kind == "bucket":
        place = "s3://nowhere/x"
    elif kind == "http":
        del options["AWS_ALLOW_HTTP"]
    else:
        options["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
    yield objects_at(Location.parse(place, {**options, "max_retries": "0"}, {}))


@pytest.mark.parametrize(
    ("kind", "cause", "cure"),
    [
        ("credentials", "does not accept the credentials", "Check AWS_ACCESS_KEY_ID"),
        ("user", "does not accept the credentials", "Check AWS_ACCESS_KEY_ID"),
        ("rights", "not allowed to do this", "write and delete"),
        ("bucket", "no such bucket", "Make it first"),
        ("http", "has to be allowed", "AWS_ALLOW_HTTP=true"),
        ("server", "does not answer", "Check that it runs"),
    ],
)
def test_what_is_wrong_is_told_without_secrets(
    s3_server: S3Server, kind: str, cause: str, cure: str
) -> None:
    with faulty(s3_server, kind) as objects:
        uses = [lambda: objects.write("a", b"1", None)]
        if kind != "rights":
            uses += [lambda: objects.read("a"), objects.names]  # type: ignore[list-item]
        for use in uses:
            with pytest.raises(StorageError) as caught:
                use()
            text = str(caught.value)
            assert cause in text and cure in text
            for name, value in objects.place.options.items():
                assert "KEY" not in name or value not in text
