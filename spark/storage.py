"""Where the jobs keep their data: a folder of this machine, or a place in an object store.

    /data/archive, file:///data/archive        this machine's disks, or what is mounted there
    s3://BUCKET/PATH (s3a:// is the same)      S3, and what speaks its protocol
    gs://BUCKET/PATH                           Google Cloud Storage
    az://CONTAINER/PATH                        Azure Blob Storage, with azure_storage_account_name
    abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH

Storage options are those of the Rust crate object_store, which deltalake and obstore share:
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ALLOW_HTTP, timeout,
max_retries and so on, in either case. The libraries read the environment of their process for what
is not given. A driver's environment does not reach the executors of a cluster, so what it says of
keys and of the server becomes options here (`ENVIRONMENT`).

No repr and no error of this module shows the value of an option that may be secret. Importing this
loads neither pyarrow nor deltalake nor obstore.

Source: apache/arrow-rs-object-store src/aws/builder.rs, src/azure/builder.rs, src/gcp/builder.rs,
src/client/mod.rs (ClientConfigKey)
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.option_reading import OptionReader, nearest
from skylarkmq.spark.requirements import check_storage_packages

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyarrow.fs import FileSystem

FILE: Final = "file"
S3: Final = "s3"
SCHEMES: Final = (FILE, S3, "gs", "az", "abfss")
_SAME: Final = {"s3a": S3, "s3n": S3, "gcs": "gs", "abfs": "abfss"}
_FAMILIES: Final = {S3: "AWS_", "gs": "GOOGLE_", "az": "AZURE_", "abfss": "AZURE_"}

ENVIRONMENT: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)  # fmt: skip
"""Variables of the driver that become options: whoever has the value can use it, anywhere."""
_CLIENT: Final = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
        "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
        "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses",
        "read_timeout", "root_certificate", "timeout", "user_agent",
    }
)  # fmt: skip
_SECRET: Final = re.compile(r"(?i)key|secret|token|password|sas|credential|bearer|account_path")
_SECRET_LENGTH_MIN: Final = 4
"""Shorter values are not looked for in texts: they would blacken every word."""
_HIDDEN: Final = "(hidden)"
_DETAIL_MAX: Final = 300
_SAID: Final = re.compile(
    r"(?:(?<= )|<Code>)([45]\d\d [A-Z][a-z]+(?: [A-Z][a-z]+)*|\w+(?=</Code>))"
)


class StorageError(RocketMQError):
    """A place cannot be used as it is; the text says why and what to do, and no secret."""


@dataclass(frozen=True, slots=True)
class Location:
    """A place for data. Immutable; pickles with its options, which no repr shows.

    Attributes:
        uri: absolute, with a scheme of SCHEMES and without a slash at its end. A file URI is
            percent-encoded, any other one is not.
        options: the storage options, as given.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @classmethod
    def parse(
        cls,
        text: str,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Location:
        """Return the place that a user names, by a path or a URI.

        Args:
            options: storage options; they win over the environment.

        Raises:
            StorageError: no place, a scheme that is not known, or no bucket.
        """
        given = dict(options or {})
        scheme, separator, rest = text.strip().partition("://")
        if not separator:
            if not text.strip():
                raise StorageError("no place is named", hint=f"Give {_known()}")
            return cls(Path(text).absolute().as_uri(), given)
        scheme = _SAME.get(scheme.lower(), scheme.lower())
        if scheme not in SCHEMES:
            raise StorageError(f"{hidden_user(text)}: {scheme}:// is not known", hint=_known())
        host, _, path = rest.partition("/")
        if scheme == FILE:
            if host not in ("", "localhost"):
                raise StorageError(
                    f"{text}: a file URI names no other machine, and this one names {host!r}",
                    hint="Write three slashes: file:///PATH",
                )
            return cls(Path("/", unquote(path)).absolute().as_uri(), given)
        if not host or (scheme == "abfss" and not re.fullmatch(r"[^@]+@[^@.]+\..+", host)):
            raise StorageError(f"{hidden_user(text)}: it does not name its store", hint=_known())
        if scheme != "abfss" and ("@" in host or ":" in host):
            raise StorageError(
                f"{hidden_user(text)}: {scheme}:// takes a bucket, no user and no port",
                hint="Give keys and the server as storage options, as AWS_ENDPOINT_URL",
            )
        names = {name.lower() for name in given}
        for name in ENVIRONMENT:
            value = environment.get(name, "")
            if name.startswith(_FAMILIES[scheme]) and value and name.lower() not in names:
                given[name] = value
        parts = [part for part in path.split("/") if part]
        if ".." in parts or "." in parts:
            raise StorageError(f"{text}: an object store has no folder . or ..")
        return cls("/".join([f"{scheme}://{host}", *parts]), given)

    def __str__(self) -> str:
        """Return the place as a user knows it: a path, or a URI."""
        return self.uri if self.path is None else str(self.path)

    @property
    def scheme(self) -> str:
        """One of SCHEMES."""
        return self.uri.partition("://")[0]

    @property
    def path(self) -> Path | None:
        """The folder on this machine; None in an object store."""
        return Path(unquote(urlsplit(self.uri).path)) if self.scheme == FILE else None

    def delta_options(self) -> dict[str, str]:
        """Return what deltalake takes as `storage_options`.

        Raises:
            StorageError: an option is not known: deltalake itself would pass over it.
        """
        if self.path is not None:
            return {}
        self.store()
        return dict(self.options)

    def filesystem(self) -> FileSystem:
        """Return pyarrow's view of the place, for Parquet; names are below it.

        Nothing is synced on a disk: who writes does that.

        Raises:
            MissingRequirementError: deltalake is not there, or too old.
            StorageError: an option is not known or wrong.
        """
        options = self.delta_options()
        check_storage_packages()
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        with self.errors():
            handler: Any = DeltaStorageHandler(self.uri, options)
            return PyFileSystem(handler)

    def store(self) -> ObjectStore:
        """Return obstore's view of the place, for small objects; names are below it.

        On a disk the folder is made. Nothing is asked of a server yet.

        Raises:
            MissingRequirementError: obstore is not there, or too old.
            StorageError: an option is not known or wrong.
        """
        check_storage_packages()
        from obstore.exceptions import UnknownConfigurationKeyError
        from obstore.store import LocalStore, from_url

        if self.path is not None:
            return LocalStore(self.path, mkdir=True)
        client, retry, config = _sorted_options(self.options)
        made: Any = from_url
        try:
            with self.errors():
                store: ObjectStore = made(
                    self.uri, config=config, client_options=client, retry_config=retry
                )
        except UnknownConfigurationKeyError as error:
            name = str(error).partition("'")[2].partition("'")[0]
            known = [*ENVIRONMENT, *_CLIENT]
            near = nearest(name, known)
            raise StorageError(
                f"{self}: the storage option {name} is not known",
                hint=f"Did you mean {near}?" if near else "Names are those of object_store",
            ) from None
        return store

    @contextmanager
    def errors(self) -> Generator[None]:
        """Turn what deltalake, obstore and pyarrow say of a store into a StorageError.

        What is no fault of the store passes as it is: an object that is not there, a commit that
        another writer won.
        """
        try:
            yield
        except Exception as error:
            found = storage_error(error, self)
            if found is None:
                raise
            raise found from None


def hidden_user(text: str) -> str:
    """Return a URI without the user and password that it may hold; they are hidden."""
    return re.sub(r"(?<=://)[^/@]*:[^/@]*@", f"{_HIDDEN}@", text)


def _known() -> str:
    return (
        "places are /PATH, file:///PATH, s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH, "
        "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
    )


def _sorted_options(
    options: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """Return the options of the HTTP client, of trying again, and of the store, for obstore.

    It takes them in three places and in lower case, and panics at some that are in a wrong one.
    """
    client: dict[str, Any] = {}
    retry: dict[str, Any] = {}
    config: dict[str, str] = {}
    for name, value in options.items():
        name = name.lower()
        bare = name.removeprefix("aws_").removeprefix("azure_").removeprefix("google_")
        if bare in _CLIENT:
            client[bare] = value
        elif name == "max_retries" and value.isdecimal():
            retry[name] = int(value)
        elif name == "retry_timeout":
            reader = OptionReader({name: value}, [name])
            retry[name] = timedelta(milliseconds=reader.milliseconds(name, 0))
        else:
            config[name] = value
    return client, retry, config


_FAULTS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        r"169\.254\.169\.254|metadata\.google\.internal|169\.254\.170\.2",
        "no credentials are given, and this machine has none of its own",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AZURE_STORAGE_ACCOUNT_KEY or "
        "GOOGLE_SERVICE_ACCOUNT_KEY, in the environment or with --storage-option",
    ),
    (
        r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist",
        "there is no such bucket or container",
        "Make it first, or check its name and AWS_ENDPOINT_URL: no job makes a bucket",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|InvalidToken|ExpiredToken"
        r"|401 Unauthorized|\b401\b.*(?:client|Unauthorized)",
        "the server does not accept the credentials",
        "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the key of the "
        "account: they are wrong, or have expired",
    ),
    (
        r"AccessDenied|403 Forbidden|AuthorizationFailure|AuthorizationPermissionMismatch",
        "the credentials are not allowed to do this there",
        "Let them list, read, write and delete objects below this place",
    ),
    (
        r"scheme is not allowed|BadScheme|URL scheme",
        "its server is named by http://, which has to be allowed",
        "Set AWS_ALLOW_HTTP=true, or name the server by https://",
    ),
    (
        r"PermanentRedirect|redirect without LOCATION|AuthorizationHeaderMalformed"
        r"|IllegalLocationConstraint",
        "the bucket is in another region",
        "Set AWS_REGION to the bucket's",
    ),
    (
        r"dns error|failed to lookup address",
        "the server's name leads to no address",
        "Check AWS_ENDPOINT_URL and AWS_REGION",
    ),
    (
        r"error sending request|operation timed out|Connect(?:ion)?Error|connection closed"
        r"|Connection refused|tcp connect",
        "the server does not answer",
        "Check that it runs and can be reached from here: AWS_ENDPOINT_URL",
    ),
    (
        r"\b50[0-9] (?:Internal|Service|Bad|Gateway)|SlowDown|ServiceUnavailable|InternalError",
        "the server has a fault or too much to do, and went on having it after several tries",
        "Run the same command again later",
    ),
    (
        r"NotImplemented\b|501 Not Implemented",
        "the server does not know a request that is needed: a put on a condition",
        "Use a store that has conditional writes (If-None-Match, If-Match), as S3 itself, MinIO, "
        "Ceph; older releases of such servers lack them",
    ),
)


def storage_error(error: BaseException, location: Location) -> StorageError | None:
    """Return what a fault of a store means, None when it is not one that is known.

    It is told from the text: deltalake gives the same Rust errors as OSError or DeltaError, obstore
    as classes of its own, pyarrow as OSError.
    """
    if location.path is not None or isinstance(error, StorageError):
        return None
    text = str(error)
    for pattern, cause, hint in _FAULTS:
        if re.search(pattern, text, re.DOTALL):
            detail = redacted(_request_of(text), location.options)
            return StorageError(f"{location}: {cause} ({detail})", hint=hint)
    return None


def _request_of(text: str) -> str:
    """Return the request that failed and what the server said; without those, how it begins."""
    request = re.search(r"Error performing ([A-Z]+ [^\s?]+)", text)
    if request is None:
        text = re.split(r"\s*(?:Debug source:|<\?xml|<Error>)", text)[0]
        return " ".join(text.split())[:_DETAIL_MAX].rstrip(": ")
    said = dict.fromkeys(found[1] for found in _SAID.finditer(text))
    return f"{request[1]}: {', '.join(said)}" if said else request[1]


def redacted(text: str, options: Mapping[str, str]) -> str:
    """Return a text with the values of options that may be secret hidden."""
    values = [
        value
        for name, value in options.items()
        if _SECRET.search(name) and len(value) >= _SECRET_LENGTH_MIN
    ]
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return re.sub(r"(?i)((?:sig|X-Amz-\w+|token|credential)=)[^&\s)]+", rf"\1{_HIDDEN}", text)
