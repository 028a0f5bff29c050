"""The files of access control, read at the start and again when they change.

    <rocketmqHome>/conf/plain_acl.yml
    <rocketmqHome>/conf/acl/*.yml, *.yaml       but not tools.yml, which has a tool's own account

rocketmqHome is the key; without it the variable ROCKETMQ_HOME. The files are read off the loop
every 5 s, and become rules only where their content has changed, all of them or none: when one is
wrong, the error is logged and counted, and the rules stay as they were. At the start it ends the
process. What waits for those who may less by the new rules ends (`revoking.py`).

mqadmin's changes (50, 51, 53) are written back into the file that has the account, new accounts
into plain_acl.yml. First a new file is made beside it, readable by its owner alone, which then
takes its place. Comments are lost, as in RocketMQ. No copy of the old file stays: it would keep a
secret that was changed. A change is checked as a whole, and counts when it is on the disk.

Unlike RocketMQ, which goes on without the accounts of a file that it cannot read, and searches the
folders in conf/acl, too.
Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../plain/PlainPermissionManager.java (load, watch,
updateAccessConfig, deleteAccessConfig, updateGlobalWhiteAddrsConfig),
srvutil/.../AclFileWatchService.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from skylarkmq.broker.access.accounts import (
    ACCOUNTS_KEY,
    DENY_ALL,
    VERSION_KEY,
    WHITE_KEY,
    AccessFileError,
    AccessRules,
    content_list,
    read_content,
    read_rules,
    read_version,
)
from skylarkmq.broker.access.revoking import Revoked
from skylarkmq.broker.access.yaml_text import SIZE_MAX, write_yaml
from skylarkmq.broker.base.waiting import result_of
from skylarkmq.common.clock import Clock
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.common.files import Files
from skylarkmq.common.first_use import on_first_use
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import Done, Worker

if TYPE_CHECKING:
    import hashlib
else:  # for a broker with access control
    hashlib = on_first_use("hashlib")

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
FILES_MAX: Final = 100
_SUFFIXES: Final = (".yml", ".yaml")
_TOOLS_FILE: Final = "tools.yml"

Texts = list[tuple[Path, bytes]]
Written = tuple[bytes, AccessRules]  # with the digest of the texts
Change = Callable[[dict[str, Any]], None]
"""Changes what a file holds, as YAML has it; raises AccessFileError for what is not possible."""


class RulesUser(Protocol):
    """What checks requests.

    Attributes:
        rules: what counts now.
    """

    rules: AccessRules


class AccessFiles:
    """Keeps rules in step with their files. Loop thread, but for `load`."""

    def __init__(self, home: Path, files: Files, worker: Worker, clock: Clock) -> None:
        """Take the folder; nothing is read yet.

        Args:
            home: rocketmqHome.
            worker: reads and writes.
        """
        self.rules: AccessRules = DENY_ALL
        self.failure_count = 0
        self.main_file = home.absolute() / "conf" / "plain_acl.yml"
        self._folder = self.main_file.parent / "acl"
        self._files = files
        self._worker = worker
        self._clock = clock
        self._users: list[RulesUser] = []
        self._revokers: list[Callable[[Revoked], None]] = []
        self._digest = b""  # of the texts that were looked at last
        self._is_reading = False
        self._writing = asyncio.Lock()
        self._timer = IntervalTimer(clock, INTERVAL_S, self._look)

    def serve(self, control: RulesUser) -> None:
        """Give rules to what checks requests, now and whenever they change."""
        control.rules = self.rules
        self._users.append(control)

    def add_revoker(self, revoke: Callable[[Revoked], None]) -> None:
        """Have `revoke` end what waits for those from whom a change of the rules takes something.

        It is called in the turn after the change: who has asked for it is answered first.
        """
        self._revokers.append(revoke)

    def load(self) -> None:
        """Read all files. Blocks; for the start alone.

        Raises:
            ConfigError: there is none, or one cannot be used.
            OSError: one cannot be read.
        """
        texts = self._read()
        if not texts:
            cure = f"there are no accounts: write {self.main_file}, or set aclEnable=false"
            raise ConfigError("aclEnable", "true", cure)
        try:
            rules = read_rules(texts)
        except AccessFileError as error:
            raise ConfigError("aclEnable", "true", str(error)) from None
        self._digest = _digest(texts)
        self._use(rules)

    def start(self) -> None:
        """Look for changes from now on."""
        self._timer.start()

    def stop(self) -> None:
        """Look for changes no more."""
        self._timer.stop()

    def _read(self) -> Texts:
        """Return path and content of every file. Any thread; blocks."""
        names = [name for name in self._files.list(self._folder) if name.endswith(_SUFFIXES)]
        paths = [self._folder / name for name in names if name != _TOOLS_FILE]
        if len(paths) > FILES_MAX:
            raise OSError(f"{self._folder} has more than {FILES_MAX} files")
        if self._files.exists(self.main_file):
            paths.insert(0, self.main_file)
        return [(path, self._read_one(path)) for path in paths]

    def _read_one(self, path: Path) -> bytes:
        size = self._files.size(path)
        if size > SIZE_MAX:
            raise OSError(f"{path} has {size} bytes, {SIZE_MAX} are read")
        return self._files.read_all(path)

    def _look(self) -> None:
        if self._is_reading or self._writing.locked():
            return
        self._is_reading = True
        self._worker.submit(lambda: self._changed(self._digest), self._looked)

    def _changed(self, known: bytes) -> tuple[bytes, AccessRules | AccessFileError] | None:
        """Read the files; return None when they have not changed since `known`. Worker thread."""
        texts = self._read()
        digest = _digest(texts)
        if digest == known:
            return None
        try:
            if not texts:
                raise AccessFileError(
                    f"{self.main_file} is gone, and there is no other; put it back"
                )
            return digest, read_rules(texts)
        except AccessFileError as error:
            return digest, error

    def _looked(
        self,
        found: tuple[bytes, AccessRules | AccessFileError] | None,
        error: BaseException | None,
    ) -> None:
        self._is_reading = False
        if error is not None:
            self._failed(error)
        elif found is not None:
            self._digest, rules = found
            if isinstance(rules, AccessFileError):
                self._failed(rules)
            else:
                self._use(rules)
                log.warning("access control has new rules: %s", told(rules))

    def _failed(self, error: BaseException) -> None:
        self.failure_count += 1
        log.error("the accounts were not read again, the old ones count: %s", error)

    def _use(self, rules: AccessRules) -> None:
        before, self.rules = self.rules, rules
        for control in self._users:
            control.rules = rules
        revoked = Revoked(before, rules)
        if revoked:
            for revoke in self._revokers:
                asyncio.get_running_loop().call_soon(revoke, revoked)

    # Changes by administrators

    async def change(self, path: Path, change: Change) -> None:
        """Change one file, and let the change count when it is on the disk.

        Raises:
            AccessFileError: the change is not possible; nothing was changed.
            OSError: the disk failed.
        """
        async with self._writing:
            now_ms = self._clock.now_ms()

            def write() -> Written:
                return self._write(path, change, now_ms)

            def begin(done: Done[Written]) -> None:
                self._worker.submit(write, done)

            self._digest, rules = await result_of(begin)
            self._use(rules)
            log.warning("access control has new rules: %s", told(rules))

    def _write(self, path: Path, change: Change, now_ms: int) -> Written:
        """Change one file, and return what all say then. Worker thread."""
        texts = self._read()
        old = dict(texts).get(path, b"")
        read_rules(texts)  # so that what a change meets is sound
        content = read_content(path, old)
        version = read_version(path, content)
        change(content)
        content[VERSION_KEY] = [{"counter": version.counter + 1, "timestamp": now_ms}]
        new = write_yaml(content)
        if read_content(path, new).get(ACCOUNTS_KEY) != content.get(ACCOUNTS_KEY):
            raise AccessFileError("a text of it cannot be written: use letters and signs alone")
        texts = [(each, new if each == path else text) for each, text in texts]
        if path not in dict(texts):
            texts.insert(0, (path, new))
        rules = read_rules(texts)
        if self.rules.admin() is not None and rules.admin() is None:
            raise AccessFileError("no admin would be left; make another account an admin first")
        self._files.replace_secret(path, new)
        return _digest(texts), rules


def put_account(values: Mapping[str, Any]) -> Change:
    """Return the change that makes an account, or replaces what is given of one.

    Args:
        values: by the names of the file; those that are left out stay as they are.
    """

    def change(content: dict[str, Any]) -> None:
        accounts = _entries(content)
        known = [each for each in accounts if each.get("accessKey") == values["accessKey"]]
        if not known:
            accounts.append({})
            known = accounts[-1:]
        known[0].update(values)
        content[ACCOUNTS_KEY] = accounts

    return change


def remove_account(access_key: str) -> Change:
    """Return the change that removes an account."""

    def change(content: dict[str, Any]) -> None:
        accounts = _entries(content)
        content[ACCOUNTS_KEY] = [each for each in accounts if each.get("accessKey") != access_key]

    return change


def put_white_list(patterns: Sequence[str]) -> Change:
    """Return the change that replaces a file's global white list."""

    def change(content: dict[str, Any]) -> None:
        content_list(Path(), content, WHITE_KEY)
        content[WHITE_KEY] = list(patterns)

    return change


def told(rules: AccessRules) -> str:
    """Return how many accounts there are, for a log."""
    admins = sum(account.is_admin for account in rules.accounts.values())
    return f"{len(rules.accounts)} accounts, {admins} of them admins, {len(rules.versions)} files"


def _entries(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the accounts of a file whose rules were read; they are maps."""
    return list(content.get(ACCOUNTS_KEY) or ())


def _digest(texts: Texts) -> bytes:
    digest = hashlib.sha256()
    for path, data in texts:
        digest.update(f"{path}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.digest()
