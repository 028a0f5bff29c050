"""Limits of this machine that a broker meets: open files, and mapped regions of memory.

A broker keeps a file for each part of its log and of each queue open and mapped, and a socket for
each client. RocketMQ's own `os.sh` sets 655,350 files and 655,360 regions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skylarkmq.tools.doctor.findings import Finding, Severity

FILES_MIN: Final = 65_536
REGIONS_MIN: Final = 65_530
"""Linux's own default: less was set by somebody."""
REGIONS_WANTED: Final = 262_144
_SERVERS: Final = re.compile(
    rb"org\.apache\.rocketmq\.(broker\.BrokerStartup|namesrv\.NamesrvStartup)"
    rb"|skylarkmq[^\0]*\0(serve|broker|namesrv)\b"
)
_FILES: Final = re.compile(r"^Max open files\s+(\d+|unlimited)", re.M)


@dataclass(frozen=True, slots=True)
class Server:
    """A broker or name server that runs on this machine."""

    pid: int
    files: int | None
    """Its limit of open files; None: none."""


def servers(proc: Path) -> Iterator[Server]:
    """Return the brokers and name servers whose limits may be read here."""
    for folder in sorted(proc.glob("[0-9]*")):
        try:
            if not _SERVERS.search((folder / "cmdline").read_bytes()):
                continue
            found = _FILES.search((folder / "limits").read_text("utf-8"))
        except OSError:  # it has ended, or it is somebody else's
            continue
        if found is not None:
            files = None if found[1] == "unlimited" else int(found[1])
            yield Server(int(folder.name), files)


def limits(proc: Path = Path("/proc")) -> list[Finding]:
    """Return which limits are low of the servers that run here; none run here: nothing."""
    found: list[Finding] = []
    running = list(servers(proc))
    low = [one for one in running if one.files is not None and one.files < FILES_MIN]
    if low:
        held = ", ".join(f"process {one.pid}: {one.files}" for one in low)
        found.append(
            Finding(
                "few_open_files", "warning", "this machine",
                f"servers here may have few files open ({held}); with many queues and clients a "
                f"broker needs {FILES_MIN} or more",
                "Set LimitNOFILE=655350 in the systemd unit, or `ulimit -n 655350` before the "
                "start",
            )
        )  # fmt: skip
    regions = _number(proc / "sys" / "vm" / "max_map_count")
    if running and regions is not None and regions < REGIONS_WANTED:
        severity: Severity = "critical" if regions < REGIONS_MIN else "warning"
        found.append(
            Finding(
                "few_mapped_regions", severity, "this machine",
                f"vm.max_map_count is {regions}: a broker maps several files for each queue",
                "sysctl -w vm.max_map_count=655360, and the same line in /etc/sysctl.d",
            )
        )  # fmt: skip
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
