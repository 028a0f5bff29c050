"""The figures of a run as a table and as JSON."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from statistics import median

from tests.bench.frames import PULL_COUNT
from tests.bench.load import Figures
from tests.bench.scenarios import ASYNC, SYNC, Scenario

RSS_TARGET_MIB = 33.0
CRC_REFERENCE_US = 0.3  # on the machine that the targets were set on, when it was quiet
READY_TARGET_S = 1.0
READY_CPU_TARGET_S = 0.35
SYNC_SHARE_TARGET = 0.6
HEAD = ["", "flush", "bytes", "messages/s", "CPU us", "target", "echo us", "p50 ms", "p99 ms"]
NEVER = "never flushed"
MANY = "send, 512 connections, 128 B, "


@dataclass
class Row:
    """What the rounds of one scenario gave."""

    scenario: Scenario
    broker: list[Figures] = field(default_factory=list[Figures])
    echo: list[Figures] = field(default_factory=list[Figures])

    @property
    def rate(self) -> float:
        return median(one.messages / one.seconds for one in self.broker)

    @property
    def cpu_us(self) -> float:
        return cpu_us(self.broker) * (PULL_COUNT if self.scenario.per_pull else 1)

    @property
    def p99_ms(self) -> float:
        return median(one.p99_s for one in self.broker) * 1000

    @property
    def echo_us(self) -> float | None:
        return cpu_us(self.echo) if self.echo else None

    def shown(self) -> list[str]:
        echo, target = self.echo_us, self.scenario.target_us
        return [
            self.scenario.name,
            self.scenario.flush.partition("_")[0].lower(),
            f"{self.scenario.job.body_size}",
            f"{self.rate:,.0f}",
            f"{self.cpu_us:.2f}",
            f"<= {target:g}" if target is not None else "",
            f"{echo:.2f}" if echo is not None else "",
            f"{median(one.p50_s for one in self.broker) * 1000:.2f}",
            f"{self.p99_ms:.2f}",
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.scenario.name,
            "flush": self.scenario.flush,
            "body_size": self.scenario.job.body_size,
            "codec": self.scenario.job.codec,
            "unit": self.scenario.unit,
            "messages_per_s": round(self.rate),
            "cpu_us": round(self.cpu_us, 3),
            "cpu_us_target": self.scenario.target_us,
            "echo_cpu_us": self.echo_us and round(self.echo_us, 3),
            "ack_p50_ms": round(median(one.p50_s for one in self.broker) * 1000, 3),
            "ack_p99_ms": round(self.p99_ms, 3),
            "rounds": len(self.broker),
        }


def cpu_us(rounds: list[Figures]) -> float:
    """CPU microseconds for each message, the median of the rounds."""
    return median(one.cpu_s / one.messages * 1e6 if one.messages else 0.0 for one in rounds)


@dataclass(frozen=True)
class Start:
    """A broker's start on an empty store, and what it then takes without a client."""

    ready_s: float  # from the start of the process
    ready_cpu_s: float  # of all threads until then
    idle_mib: float  # resident
    idle_file_mib: float  # the part of it that is pages of files: the interpreter, libraries


@dataclass
class Report:
    """A whole run."""

    rows: list[Row]
    crc_us: float
    disk_sync_ms: float
    start: Start

    def facts(self) -> list[tuple[str, str, str]]:
        """Name, figure and target of what is not a row."""
        start = self.start
        return [
            ("zlib.crc32 of 1 KiB, p50", f"{self.crc_us:.2f} us", f"{CRC_REFERENCE_US} us there"),
            ("disk's own fdatasync of 4 KiB, p50", f"{self.disk_sync_ms:.2f} ms", ""),
            ("ready on an empty store", f"{start.ready_s:.2f} s", f"<= {READY_TARGET_S:g} s"),
            ("CPU until then", f"{start.ready_cpu_s:.2f} s", f"< {READY_CPU_TARGET_S:g} s"),
            ("idle broker, resident", f"{start.idle_mib:.1f} MiB", f"< {RSS_TARGET_MIB:g} MiB"),
            ("of that, pages of files", f"{start.idle_file_mib:.1f} MiB", ""),
            *self._sync_share(),
            *self._flush_tail(),
        ]

    def _flush_tail(self) -> list[tuple[str, str, str]]:
        tails = {row.scenario.key: row.p99_ms for row in self.rows}
        with_flush, without = (f"{name}, 64 in flight, 1024 B, {ASYNC}" for name in ("send", NEVER))
        if with_flush not in tails or without not in tails:
            return []
        ratio = tails[with_flush] / tails[without]
        return [("p99 of async acks, flushing / never flushing", f"{ratio:.1f}", "<= 3")]

    def _sync_share(self) -> list[tuple[str, str, str]]:
        rates = {row.scenario.key: row.rate for row in self.rows}
        if MANY + ASYNC not in rates or MANY + SYNC not in rates:
            return []
        share = rates[MANY + SYNC] / rates[MANY + ASYNC]
        return [
            (
                "sync rate / async rate, 512 clients",
                f"{share:.0%}",
                f">= {SYNC_SHARE_TARGET:.0%}",
            )
        ]

    def text(self) -> str:
        head = [
            "",
            "flush",
            "bytes",
            "messages/s",
            "CPU us",
            "target",
            "echo us",
            "p50 ms",
            "p99 ms",
        ]
        cells = [head, *(row.shown() for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
        lines = [machine(), ""]
        for line in cells:
            first, *rest = (
                text.ljust(width) if column == 0 else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            )
            lines.append("  ".join([first, *rest]).rstrip())
        lines += [
            "",
            "CPU us: of all broker threads, for each message; for a pull row, for each pull.",
        ]
        lines += ["echo us: of a server that gives the same requests back, for each message.", ""]
        lines += [f"{name:<44}{figure:>10}   {target}" for name, figure, target in self.facts()]
        return "\n".join(lines)

    def as_json(self) -> dict[str, object]:
        return {
            "machine": machine(),
            "rows": [row.as_json() for row in self.rows],
            "crc32_1k_us": round(self.crc_us, 3),
            "disk_fdatasync_p50_ms": round(self.disk_sync_ms, 3),
            "ready_s": round(self.start.ready_s, 3),
            "ready_cpu_s": round(self.start.ready_cpu_s, 3),
            "idle_resident_mib": round(self.start.idle_mib, 1),
            "idle_resident_file_mib": round(self.start.idle_file_mib, 1),
        }


def machine() -> str:
    """What the figures belong to."""
    return (
        f"{platform.python_implementation()} {platform.python_version()}, {sys.platform}, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before"
    )
