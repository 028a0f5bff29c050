"""A real S3 server for tests: moto's, a process of its own on this machine's loopback.

It checks credentials and signatures. moto looks at the condition of a put (If-Match, If-None-Match)
and then puts, with nothing in between that keeps another request out; S3 does both as one. So what
changes anything comes one request at a time here (`OneAtATime`), as with a real store.

A test can hold requests up on their way (`S3Server.held_up`): what asked for them is then in the
middle of it, and may be killed there.

    python s3_server.py GATE     prints the port, and serves until its standard input ends
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

BUCKET = "data"
REGION = "us-east-1"
_NUMBERS = count(1)
_LOOK_EVERY_S = 0.005


@dataclass(frozen=True)
class S3Server:
    """A server that runs. `options` are those of a user who may do all in BUCKET."""

    url: str
    gate: Path
    """A folder: what is held up, and which requests wait there."""
    options: dict[str, str] = field(repr=False)
    reader_options: dict[str, str] = field(repr=False)
    """Of a user who may only read."""

    @contextmanager
    def held_up(self, pattern: str) -> Generator[Callable[[], int]]:
        """Let requests wait whose method and path match; yield what tells how many came so far.

        They go on after the block, if whoever sent them is still there.
        """
        name = f"{next(_NUMBERS)}"
        new = self.gate / "new"
        new.write_text(pattern)
        new.rename(self.gate / f"pattern-{name}")
        try:
            yield lambda: len(list(self.gate.glob(f"held-{name}-*")))
        finally:
            (self.gate / f"pattern-{name}").unlink()

    def place(self, name: str = "place") -> str:
        """Return a URI that no other test has."""
        return f"s3://{BUCKET}/{name}-{next(_NUMBERS)}"


@contextmanager
def running_s3_server() -> Iterator[S3Server]:
    """Run a server with one empty bucket, and end it."""
    gate = tempfile.TemporaryDirectory(prefix="s3-gate-")
    process = subprocess.Popen(
        [sys.executable, __file__, gate.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "MOTO_ALLOW_NONEXISTENT_REGION": "true"},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the S3 server did not start: is moto[server] installed?"
        url = f"http://127.0.0.1:{int(line)}"
        yield S3Server(url, Path(gate.name), *_users(url))
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
        gate.cleanup()


def _users(url: str) -> list[dict[str, str]]:
    """Make the bucket and a user each for writing and reading; return their options."""
    import urllib.request

    import boto3  # type: ignore[import-untyped]

    common = {"endpoint_url": url, "region_name": REGION, "aws_access_key_id": "root",
              "aws_secret_access_key": "root"}  # fmt: skip
    boto3.client("s3", **common).create_bucket(Bucket=BUCKET)
    iam = boto3.client("iam", **common)
    found: list[dict[str, str]] = []
    for name, actions in (("writer", ["s3:*"]), ("reader", ["s3:Get*", "s3:List*"])):
        iam.create_user(UserName=name)
        statement = {"Effect": "Allow", "Action": actions, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy)
        key = iam.create_access_key(UserName=name)["AccessKey"]
        found.append(
            {
                "AWS_ENDPOINT_URL": url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": REGION,
                "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
            }
        )
    # From here on it checks who asks.
    request = urllib.request.Request(
        f"{url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
    )
    urllib.request.urlopen(request).close()
    return found


class OneAtATime:
    """A WSGI application that lets one request at a time change anything."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return self._application(environ, start_response)
        with self._lock:
            return list(self._application(environ, start_response))


class Gate:
    """A WSGI application at which requests wait that a file `pattern-*` of a folder matches."""

    def __init__(self, folder: Path, application: Callable[..., Iterable[bytes]]) -> None:
        self._folder = folder
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        while (name := self._held_by(request)) is not None:
            (self._folder / f"held-{name}-{next(_NUMBERS)}").touch()
            while (self._folder / f"pattern-{name}").exists():
                threading.Event().wait(_LOOK_EVERY_S)
        return self._application(environ, start_response)

    def _held_by(self, request: str) -> str | None:
        """Return the name of a pattern that matches."""
        for path in self._folder.glob("pattern-*"):
            with suppress(FileNotFoundError):
                if re.search(path.read_text(), request):
                    return path.name.partition("-")[2]
        return None


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

    backend = OneAtATime(DomainDispatcherApplication(create_backend_app))
    application = Gate(Path(sys.argv[1]), backend)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
