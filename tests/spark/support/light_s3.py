"""What the jobs need of an S3 server: objects of one bucket, in the memory of a small process.

It knows no credentials and no signatures, starts at once, and answers in a tenth of the time that
the real one (`s3_server.py`) takes. A condition of a put is looked at and the put is done as one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

BUCKET = "data"
PAGE_MAX = 1000
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class Objects:
    """Objects by key, and uploads in parts that are not complete."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, tuple[bytes, str, str]] = {}  # body, tag, when it was put
        self.uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = count(1)

    def put(self, key: str, body: bytes, headers: Any) -> tuple[int, str]:
        """Return the status and the tag; the caller has the lock."""
        there = self.by_key.get(key)
        if headers.get("If-None-Match") == "*" and there is not None:
            return 412, ""
        wanted = headers.get("If-Match")
        if wanted is not None and there is None:
            return 404, ""
        if wanted is not None and there is not None and wanted != there[1]:
            return 412, ""
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        self.by_key[key] = body, tag, formatdate(usegmt=True)
        return 200, tag

    def begin(self) -> str:
        """Return the id of a new upload in parts."""
        upload = f"upload-{next(self._numbers)}"
        self.uploads[upload] = {}
        return upload

    def listed(self, query: dict[str, str]) -> str:
        """Return a page of keys as XML."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        rows: dict[str, str] = {}
        for key, (body, tag, _) in sorted(self.by_key.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            folder = prefix + head + found
            if found and folder != after:
                rows[folder] = f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            elif not found:
                rows[key] = (
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size><ETag>{tag}</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        names = [*rows][: int(query.get("max-keys", PAGE_MAX))]
        is_cut = len(names) < len(rows)
        inner = "".join(rows[name] for name in names)
        if is_cut:
            inner += f"<NextContinuationToken>{escape(names[-1])}</NextContinuationToken>"
        return (
            f'<ListBucketResult xmlns="{NAMESPACE}"><Name>{BUCKET}</Name>'
            f"<KeyCount>{len(names)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
            f"{inner}</ListBucketResult>"
        )


class Handler(BaseHTTPRequestHandler):
    """Answers one connection's requests."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one
    objects: Objects

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass

    def _asked(self) -> tuple[str, dict[str, str], bytes]:
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        return key, query, body

    def _answer(self, status: int, body: bytes | str = b"", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _refuse(self, status: int) -> None:
        code = {404: "NoSuchKey", 412: "PreconditionFailed", 416: "InvalidRange"}[status]
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>")

    def do_PUT(self) -> None:
        key, query, body = self._asked()
        with self.objects.lock:
            if "partNumber" in query:
                self.objects.uploads[query["uploadId"]][int(query["partNumber"])] = body
                status, tag = 200, f'"{hashlib.md5(body).hexdigest()}"'
            else:
                status, tag = self.objects.put(key, body, self.headers)
        if status == 200:
            self._answer(200, ETag=tag)
        else:
            self._refuse(status)

    def do_POST(self) -> None:
        key, query, body = self._asked()
        with self.objects.lock:
            if "uploads" in query:
                upload = self.objects.begin()
                text = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key>"
                text += f"<UploadId>{upload}</UploadId>"
                self._xml("InitiateMultipartUploadResult", text)
            elif "delete" in query:
                keys = [each.text or "" for each in ElementTree.fromstring(body).iter()
                        if each.tag.endswith("Key")]  # fmt: skip
                for each in keys:
                    self.objects.by_key.pop(each, None)
                gone = (f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
                self._xml("DeleteResult", "".join(gone))
            else:
                parts = self.objects.uploads.pop(query["uploadId"])
                whole = b"".join(parts[number] for number in sorted(parts))
                status, tag = self.objects.put(key, whole, self.headers)
                if status == 200:
                    text = f"<Key>{escape(key)}</Key><ETag>{escape(tag)}</ETag>"
                    self._xml("CompleteMultipartUploadResult", text)
                else:
                    self._refuse(status)

    def _xml(self, name: str, inner: str) -> None:
        self._answer(200, f'<{name} xmlns="{NAMESPACE}">{inner}</{name}>')

    def do_DELETE(self) -> None:
        key, query, _ = self._asked()
        with self.objects.lock:
            if "uploadId" in query:
                self.objects.uploads.pop(query["uploadId"], None)
            else:
                self.objects.by_key.pop(key, None)
        self._answer(204)

    def do_GET(self) -> None:
        key, query, _ = self._asked()
        if not key:
            with self.objects.lock:
                text = self.objects.listed(query)
            self._answer(200, text, Content_Type="application/xml")
            return
        with self.objects.lock:
            found = self.objects.by_key.get(key)
        if found is None:
            self._refuse(404)
            return
        body, tag, when = found
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != tag:
            self._refuse(412)
            return
        headers = {"ETag": tag, "Last_Modified": when, "Accept_Ranges": "bytes"}
        span = self.headers.get("Range")
        if self.command == "HEAD":
            self._answer(200, Content_Length=str(len(body)), **headers)
        elif span is None:
            self._answer(200, body, **headers)
        else:
            first, last = span_of(span, len(body))
            headers["Content_Range"] = f"bytes {first}-{last}/{len(body)}"
            self._answer(206, body[first : last + 1], **headers)

    do_HEAD = do_GET


def span_of(header: str, size: int) -> tuple[int, int]:
    """Return the first and the last byte of a range."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


@contextmanager
def running_light_s3() -> Iterator[dict[str, str]]:
    """Run a server; yield the options of whoever uses its bucket.

    It is a process: some clients keep Python's lock while they wait for an answer.
    """
    process = subprocess.Popen(
        [sys.executable, "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the tests
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(process.stdout.readline())}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "anybody",
            "AWS_SECRET_ACCESS_KEY": "anything",
        }
    finally:
        process.stdin.close()  # it ends with its standard input
        process.wait()
        process.stdout.close()


def main() -> None:
    Handler.objects = Objects()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
