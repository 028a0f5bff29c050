"""The audit log: who changed what, from where, and whether it was done.

    {"ts":"2024-01-31T12:00:00.123Z","server":"broker-a","who":"administrator",
     "from":"10.0.0.7:51234","code":17,"name":"UPDATE_AND_CREATE_TOPIC",
     "resource":{"topic":"orders"},"result":0}

One JSON object a line for each request that changes something by an administrator's hand, also for
one that access control refused. `who` is the access key, empty without access control and for peers
of a white list. What is refused has its `remark`. No secret and no message is in it.

The lines go to `auditLogPath`, else to the log, as messages of the logger `skylarkmq.audit`; a log
in JSON has these keys among its own. A file may be renamed at any time: the next line makes a new
one. There are at most BURST lines at once and PER_S a second over long; a line says with `leftOut`
how many are missing before it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from skylarkmq.broker.access.accounts import Account
from skylarkmq.broker.access.rights import Row
from skylarkmq.broker.base.logs import FIELDS
from skylarkmq.broker.base.token_bucket import TokenBucket
from skylarkmq.broker.config.properties_file import PropertiesError, read_properties
from skylarkmq.broker.net.connection import Connection
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)
audit_log = logging.getLogger("skylarkmq.audit")

BURST: Final = 500
PER_S: Final = 50.0
PENDING_MAX: Final = 1000
"""Lines that may wait for a slow disk."""
TEXT_MAX: Final = 300
"""Characters of a value, and of a remark."""
BODY_READ_MAX: Final = 64 << 10
# Fields of headers that name what a request is about.
_FIELDS: Final = (
    "topic", "group", "groupName", "consumerGroup", "srcGroup", "destGroup", "brokerName",
    "clusterName", "namespace", "key", "accessKey", "clientId", "msgId", "timestamp", "offset",
    "aclFileFullPath", "globalWhiteAddrs", "admin", "perm", "target", "acceptLoss",
)  # fmt: skip


class Audit:
    """Writes the audit log of one server. Loop thread.

    Attributes:
        codes: whose requests are to be noted.
    """

    def __init__(
        self,
        server: str,
        rows: Mapping[int, Row],
        clock: Clock,
        path: Path | None = None,
        files: Files | None = None,
        worker: Worker | None = None,
    ) -> None:
        """Take where lines go.

        Args:
            server: named in each line.
            rows: say which codes are changes.
            path: the file; None: the log. It needs `files` and `worker`, which appends to it.
        """
        self.codes = frozenset(code for code, row in rows.items() if row.is_change)
        self._server = server
        self._clock = clock
        self._path = path
        self._files = files
        self._worker = worker
        self._bucket = TokenBucket(clock, BURST, PER_S)
        self._pending_count = 0
        self._lost_count = 0  # lines that the disk did not take, until the next line
        self._has_failed = False

    def note(
        self, connection: Connection, request: RemotingCommand, response: RemotingCommand | None
    ) -> None:
        """Write what became of a request; `response` is its answer, if it has one."""
        if self._pending_count >= PENDING_MAX or not self._bucket.take():
            self._lost_count += self._pending_count >= PENDING_MAX
            return
        sender, name = request.sender, RequestCode(request.code).name
        line: dict[str, Any] = {
            "ts": _time(self._clock.now_ms()),
            "server": self._server,
            "who": sender.access_key if isinstance(sender, Account) else "",
            "from": connection.remote_address,
            "code": request.code,
            "name": name,
            "resource": _resource(request),
            "result": None if response is None else response.code,
        }
        if response is not None and response.remark:
            line["remark"] = response.remark[:TEXT_MAX]
        left_out = self._bucket.left_out() + self._lost_count
        if left_out:
            line["leftOut"], self._lost_count = left_out, 0
        self._write(line, 1 + left_out)

    def _write(self, fields: dict[str, Any], stands_for: int) -> None:
        """Write a line that stands for itself, and for those that it counts as left out."""
        path, files, worker = self._path, self._files, self._worker
        line = msgspec.json.encode(fields)
        if path is None or files is None or worker is None:
            # A log in JSON has the fields themselves, and not their JSON as a text.
            audit_log.info("%s", line.decode(), extra={FIELDS: {**fields, "msg": fields["name"]}})
            return

        def append() -> None:
            file = files.open(path, create=True)
            try:
                file.pwrite(line + b"\n", file.size)
            finally:
                file.close()

        def written(_: None, error: BaseException | None) -> None:
            self._written(stands_for, error)

        self._pending_count += 1
        worker.submit(append, written)

    def _written(self, stands_for: int, error: BaseException | None) -> None:
        self._pending_count -= 1
        if error is not None:
            self._lost_count += stands_for
        if (error is not None) != self._has_failed:
            self._has_failed = error is not None
            if error is not None:
                log.error("the audit log is not written: %s", error)
            else:
                log.warning("the audit log is written again")


def _time(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _resource(request: RemotingCommand) -> dict[str, str]:
    """Return what a request is about, as far as it says so; never a secret."""
    fields = request.ext_fields
    found: dict[str, str] = {name: fields[name][:TEXT_MAX] for name in _FIELDS if name in fields}
    if len(request.body) > BODY_READ_MAX:
        return found
    try:
        if request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            group = decode_body(SubscriptionGroupConfig, request.body).group_name
            found["groupName"] = group[:TEXT_MAX]
        elif request.code == RequestCode.UPDATE_BROKER_CONFIG:
            keys = ",".join(item.key for item in read_properties(request.body))
            found["keys"] = keys[:TEXT_MAX]
    except (RemoteProtocolError, PropertiesError):
        found["body"] = "cannot be read"
    return found
