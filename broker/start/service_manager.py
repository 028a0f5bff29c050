"""Tells systemd when a server is ready, how far its start is, and that its event loop still runs.

A unit with `Type=notify` gets a datagram socket, whose name is in NOTIFY_SOCKET:

    STATUS=...                       a line for `systemctl status`
    EXTEND_TIMEOUT_USEC=...          the start goes on: wait so much longer (TimeoutStartSec)
    READY=1                          clients are served
    WATCHDOG=1                       within each WATCHDOG_USEC; without it the unit is started again
    STOPPING=1                       it was told to stop

The event loop itself sends WATCHDOG=1, three times within the limit, so a loop that hangs ends the
process. While the kernel holds the loop's thread until a disk answers, a thread of its own sends it
instead: a new process would wait for the same disk, and recover after it (`base/health.py`).

Without NOTIFY_SOCKET nothing of this happens. A failed message costs a log line, never the server.

Source: sd_notify(3), sd_watchdog_enabled(3)
"""

from __future__ import annotations

import faulthandler
import logging
import os
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Final

from skylarkmq.broker.base.health import waits_for_disk
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer

log = logging.getLogger(__name__)

START_EXTENDED_S: Final = 300
"""So much longer the start may take, after each sign that it goes on."""
FEEDS_A_LIMIT: Final = 3
READY_LIMIT_S: Final = 5
"""READY=1 waits so long for a systemd that is behind: nothing else says it. Others never wait."""


class ServiceManager:
    """The socket of systemd, if there is one. Any thread, but for `watch` and `stopping`."""

    def __init__(self, environment: Mapping[str, str], process: int | None = None) -> None:
        """Take NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.

        Args:
            process: the id of this process; None: ask the system.
        """
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self._socket: socket.socket | None = None
        if name.startswith(("@", "/")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            limit = struct.pack("@ll", READY_LIMIT_S, 0)  # a timeval
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self.watchdog_s = _watchdog_s(environment, os.getpid() if process is None else process)
        self._timer: IntervalTimer | None = None
        self._stopped = threading.Event()
        self._was_fed = False
        self._status = ""

    @property
    def is_there(self) -> bool:
        """Whether somebody listens."""
        return self._socket is not None

    def starting(self, status: str) -> None:
        """Tell that the start goes on, and how far it is."""
        if status != self._status:
            self._status = status
            self._tell(f"STATUS={status}\nEXTEND_TIMEOUT_USEC={START_EXTENDED_S * 1_000_000}")

    def ready(self, status: str, clock: Clock | None = None) -> None:
        """Tell that clients are served.

        Args:
            clock: the event loop feeds the watchdog from now on; None: `watch` is called later.
        """
        self._tell(f"READY=1\nSTATUS={status}", waits=True)
        if clock is not None:
            self.watch(clock)

    def watch(self, clock: Clock) -> None:
        """Have the event loop feed the watchdog from now on, if the unit has one. Loop thread."""
        if self._socket is None or not self.watchdog_s:
            return
        faulthandler.enable()  # who hangs gets SIGABRT, and writes where its threads are
        interval_s = self.watchdog_s / FEEDS_A_LIMIT
        self._timer = IntervalTimer(clock, interval_s, self._feed)
        self._timer.start()
        self._feed()
        threading.Thread(
            target=self._spare,
            args=(threading.get_native_id(), interval_s),
            name="skylarkmq-watchdog",
            daemon=True,
        ).start()

    def stopping(self) -> None:
        """Tell that it stops; the watchdog is fed until `close`. Loop thread."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def close(self) -> None:
        """Say nothing more. Loop thread."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.stop()
        bound, self._socket = self._socket, None
        if bound is not None:
            bound.close()

    def _feed(self) -> None:
        self._was_fed = True
        self._tell("WATCHDOG=1")

    def _spare(self, loop_thread: int, interval_s: float) -> None:
        """Feed in place of a loop that the kernel holds until a disk answers."""
        while not self._stopped.wait(interval_s):
            self.spare(is_held=waits_for_disk(loop_thread))

    def spare(self, *, is_held: bool) -> None:
        """Feed if the loop has not since the last call, and is held by the disk."""
        was_fed, self._was_fed = self._was_fed, False
        if is_held and not was_fed:
            self._tell("WATCHDOG=1")

    def _tell(self, text: str, *, waits: bool = False) -> None:
        bound = self._socket
        if bound is None:
            return
        try:
            bound.sendto(text.encode(), 0 if waits else socket.MSG_DONTWAIT, self._address)
        except BlockingIOError:
            log.log(
                logging.WARNING if waits else logging.DEBUG,
                "systemd has not read for long, and was not told %s",
                text.partition("\n")[0],
            )
        except OSError as error:
            log.warning("systemd was not told %s: %s", text.partition("\n")[0], error)


def _watchdog_s(environment: Mapping[str, str], process: int) -> float:
    """Return the watchdog's limit, s; 0 without one, or when it is another process's."""
    limit, owner = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not limit.isdigit() or (owner and owner != str(process)):
        return 0.0
    return int(limit) / 1_000_000
