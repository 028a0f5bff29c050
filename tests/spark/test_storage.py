"""Places for data: how they are named, with which options, and what an error of theirs says."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.spark import requirements
from skylarkmq.spark.jobs.common import JobSettings, UsageError
from skylarkmq.spark.requirements import MissingRequirementError
from skylarkmq.spark.storage import Location, StorageError, storage_error

S3 = {"AWS_ACCESS_KEY_ID": "AKIDHIDDEN", "aws_secret_access_key": "hidden-1"}


def parse(text: str, **environment: str) -> Location:
    return Location.parse(text, S3, environment)


@pytest.mark.parametrize("name", ["plain", "with a blank", "a%20b", "ümlaut", "a#b?c"])
def test_a_folder_by_its_path_or_its_uri(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    for text in (str(folder), folder.as_uri(), folder.as_uri() + "/"):
        location = parse(text)
        assert location.path == folder
        assert location.uri == folder.as_uri()
        assert str(location) == str(folder)
        assert location.delta_options() == {}


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("data/x").path == tmp_path / "data/x"


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a//b/", "s3://bucket/a/b"),
        ("S3://bucket/A b", "s3://bucket/A b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("az://container/a", "az://container/a"),
        ("abfss://c@acc.dfs.core.windows.net/a/", "abfss://c@acc.dfs.core.windows.net/a"),
    ],
)
def test_a_place_in_an_object_store(text: str, uri: str) -> None:
    location = parse(text)
    assert (location.uri, str(location), location.path) == (uri, uri, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no place"),
        ("hdfs://a/b", "hdfs:// is not known"),
        ("s3:///x", "does not name its store"),
        ("s3://key:hidden-9@bucket/x", "no user"),
        ("abfss://container/x", "does not name its store"),
        ("file://server/share", "no other machine"),
        ("s3://bucket/../x", "no folder"),
    ],
)
def test_what_is_no_place(text: str, why: str) -> None:
    with pytest.raises(StorageError, match=why) as caught:
        parse(text)
    assert "hidden-9" not in str(caught.value)
    with pytest.raises(UsageError):
        JobSettings().location(text)


def test_the_driver_s_environment_becomes_options_and_gives_way_to_given_ones() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "other", "AWS_ENDPOINT_URL": "http://h:1", "HOME": "/root",
        "AZURE_STORAGE_ACCOUNT_KEY": "azure", "AWS_REGION": "",
    }  # fmt: skip
    assert parse("s3://b", **environment).options == {**S3, "AWS_ENDPOINT_URL": "http://h:1"}
    assert parse("/data", **environment).options == S3
    assert Location.parse("az://c", {}, environment).options == {
        "AZURE_STORAGE_ACCOUNT_KEY": "azure"
    }


def test_options_travel_and_are_not_shown() -> None:
    location = parse("s3://b/x/y")
    assert pickle.loads(pickle.dumps(location)) == location
    assert location.options == S3
    settings = JobSettings(storage_options={"AWS_SECRET_ACCESS_KEY": "hidden-1"})
    assert settings.location("s3://b").options["AWS_SECRET_ACCESS_KEY"] == "hidden-1"
    for shown in (repr(location), str(location), repr(settings)):
        assert "hidden-1" not in shown


def test_options_reach_the_store_in_the_places_where_it_wants_them() -> None:
    options = {**S3, "AWS_ENDPOINT_URL": "http://h:1", "AWS_REGION": "r", "timeout": "5s",
               "AWS_ALLOW_HTTP": "true", "max_retries": "2", "retry_timeout": "3s"}  # fmt: skip
    location = Location.parse("s3://b/x", options, {})
    store: Any = location.store()
    assert (store.prefix, store.config["endpoint"]) == ("x", "http://h:1")
    assert store.retry_config["max_retries"] == 2
    assert store.retry_config["retry_timeout"] == timedelta(seconds=3)
    assert store.client_options == {"allow_http": "true", "timeout": "5s"}
    assert location.delta_options() == options


def test_an_option_that_is_not_known_is_refused_with_the_nearest() -> None:
    location = Location.parse("s3://b/x", {"AWS_ENDPOINT_ULR": "http://h:1"}, {})
    for use in (location.store, location.delta_options, location.filesystem):
        with pytest.raises(StorageError, match="Did you mean AWS_ENDPOINT_URL"):
            use()


def test_files_of_a_folder(tmp_path: Path) -> None:
    location = parse(str(tmp_path / "a b"))
    location.store().put("x/y", b"1")
    filesystem = location.filesystem()
    with filesystem.open_input_stream("x/y") as file:
        assert file.read() == b"1"


GONE = "Generic S3 error: Error performing GET http://h:1/b/x in 2s - HTTP error: error sending"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"{GONE} request\n\nDebug source:\nhidden-1", "does not answer"),
        ("x http://169.254.169.254/latest in 1s - error sending request", "no credentials"),
        ("x 404 Not Found: <?xml?><Error><Code>NoSuchBucket</Code>", "no such bucket"),
        ("x 403 Forbidden: <Error><Code>InvalidAccessKeyId</Code>hidden-1", "does not accept"),
        ("x 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code>", "does not accept"),
        ("x 403 Forbidden: <Error><Code>AccessDenied</Code>", "not allowed"),
        ("HTTP error: builder error: URL scheme is not allowed", "has to be allowed"),
        ("Received redirect without LOCATION, this normally indicates", "another region"),
        ("error sending request: dns error: failed to lookup address", "no address"),
        ("Server error 503 Service Unavailable hidden-1: SlowDown", "too much to do"),
        ("Server returned non-2xx status code: 501 Not Implemented", "put on a condition"),
    ],
)
def test_an_error_tells_cause_and_cure_and_no_secret(text: str, cause: str) -> None:
    location = parse("s3://b/x")
    error = storage_error(OSError(text), location)
    assert error is not None
    assert cause in str(error)
    assert str(error).startswith("s3://b/x: ")
    assert error.hint
    for hidden in ("hidden-1", "AKIDHIDDEN", "<", "Debug"):
        assert hidden not in str(error)


def test_what_is_no_fault_of_the_store_passes() -> None:
    assert storage_error(OSError("404 Not Found: NoSuchKey"), parse("s3://b/x")) is None
    assert storage_error(OSError("NoSuchBucket"), parse("/data")) is None
    with pytest.raises(KeyError), parse("s3://b/x").errors():
        raise KeyError("x")
    with pytest.raises(StorageError), parse("s3://b/x").errors():
        raise OSError("403 Forbidden")


def test_it_loads_no_library_of_stores_until_one_is_used() -> None:
    heavy = "pyarrow", "deltalake", "obstore", "pyspark"
    code = (
        "import sys; from skylarkmq.spark.jobs.common import JobSettings\n"
        "JobSettings().location('s3://b/x')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["deltalake", "obstore"])
def test_a_missing_or_old_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingRequirementError, match=rf"{package}.*\[spark\]"):
        parse("/data").store()
    monkeypatch.undo()
    monkeypatch.setattr(requirements, f"OLDEST_{package.upper()}", (99, 0))
    with pytest.raises(MissingRequirementError, match=rf"{package} .* is too old: 99.0"):
        parse("/data").filesystem()
