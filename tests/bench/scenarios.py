"""What is measured, and the target that stands beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.bench.load import Job

ASYNC = "ASYNC_FLUSH"
SYNC = "SYNC_FLUSH"
BATCH_COUNT = 32
PWRITE, POOL, MAPPED = "pwrite", "pool", "mapped"
ROADS = (PWRITE, POOL, MAPPED)
SIZES = (128, 1024)


@dataclass(frozen=True)
class Scenario:
    """One row of the report; port and pid of its job are filled in when it runs."""

    name: str
    flush: str
    job: Job
    target_us: float | None = None  # broker CPU for each message, or each pull
    unit: str = "message"
    road: str = PWRITE
    flushing: bool = True  # False: the log is left to the system, to see what flushing costs
    access: bool = False  # the broker has access control
    slave: bool = False  # one follows the broker

    @property
    def per_pull(self) -> bool:
        return self.unit == "pull"

    @property
    def key(self) -> str:
        return f"{self.name}, {self.job.body_size} B, {self.flush}"

    @property
    def has_echo(self) -> bool:
        """Return whether an echo under the same load says something."""
        job = self.job
        return self.flush == ASYNC and not (self.per_pull or job.tls or job.signed or self.slave)

    @property
    def server(self) -> tuple[str, str, bool, bool, bool]:
        """Which broker it needs."""
        return self.flush, self.road, self.flushing, self.access, self.slave


def job(kind: str, size: int, connections: int, window: int, codec: str, batch: int = 1) -> Job:
    topic = f"bench-{kind}" if kind != "pull" else f"bench-pull-{size}"
    return Job(
        kind, 0, 0, topic, connections=connections, window=window, body_size=size,
        batch=batch, codec=codec,
    )  # fmt: skip


def sends(flush: str, size: int, codec: str) -> list[Scenario]:
    """Single sends over one connection and over many."""
    asynchronous = flush == ASYNC
    return [
        Scenario("send, 1 in flight", flush, job("send", size, 1, 1, codec)),
        Scenario(
            "send, 64 in flight", flush, job("send", size, 1, 64, codec),
            8.0 if asynchronous else None,
        ),
        Scenario(
            "send, 1024 in flight", flush, job("send", size, 1, 1024, codec),
            8.0 if asynchronous else None,
        ),
        Scenario(
            "send, 64 connections", flush, job("send", size, 64, 1, codec),
            18.0 if asynchronous else None,
        ),
    ]  # fmt: skip


def roads(codec: str) -> list[Scenario]:
    """The other ways to the file, and the first one without flushing."""
    rows: list[Scenario] = []
    for flush in (ASYNC, SYNC):
        for road in (POOL, MAPPED):
            for name, connections, window in (("64 in flight", 1, 64), ("64 connections", 64, 1)):
                work = job("send", 1024, connections, window, codec)
                rows.append(Scenario(f"{road} road, {name}", flush, work, road=road))
    work = job("send", 1024, 1, 64, codec)
    rows.append(Scenario("never flushed, 64 in flight", ASYNC, work, flushing=False))
    return rows


def largest(codec: str) -> list[Scenario]:
    """Sends and pulls of 1 KiB, beside which TLS and access control are looked at."""
    size = SIZES[-1]
    pull = Scenario("pull of 32, 4 in flight", ASYNC, job("pull", size, 1, 4, codec), unit="pull")
    return [replace(row, target_us=None) for row in [*sends(ASYNC, size, codec), pull]]


def over_tls(codec: str) -> list[Scenario]:
    """Rows of all_scenarios again, with TLS."""
    return [
        replace(row, name=f"TLS: {row.name}", job=replace(row.job, tls=True))
        for row in largest(codec)
    ]


def with_access_control(codec: str) -> list[Scenario]:
    """Rows of all_scenarios again with access control, and with the other header with and without.

    Beside them stands what signing costs where nobody looks at the signatures.
    """
    other = "ROCKETMQ" if codec == "JSON" else "JSON"
    plain = [replace(row, name=f"{other} header: {row.name}") for row in largest(other)]
    signed = [replace(row, job=replace(row.job, signed=True)) for row in [*largest(codec), *plain]]
    checked = [replace(row, name=f"ACL: {row.name}", access=True) for row in signed]
    unlooked = [replace(row, name=f"signed, no ACL: {row.name}") for row in signed]
    return [*plain, *checked, *(row for row in unlooked if "64 in flight" in row.name)]


def with_slave(codec: str, sizes: tuple[int, ...]) -> list[Scenario]:
    """Rows of all_scenarios again, with a slave: the master is to pay at most 25 % for it."""
    rows = [row for size in sizes for row in sends(ASYNC, size, codec)]
    return [replace(row, name=f"one slave: {row.name}", slave=True, target_us=None) for row in rows]


def all_scenarios(codec: str, *, quick: bool) -> list[Scenario]:
    """The rows of a report, those of a quick one of 128 B only."""
    sizes = SIZES[:1] if quick else SIZES
    rows: list[Scenario] = []
    for flush in (ASYNC, SYNC):
        for size in sizes:
            rows += sends(flush, size, codec)
        rows.append(Scenario("send, 512 connections", flush, job("send", 128, 512, 1, codec)))
    rows += roads(codec)
    for size in sizes:
        rows.append(
            Scenario(
                f"batch of {BATCH_COUNT}, 4 in flight", ASYNC,
                job("batch", size, 1, 4, codec, BATCH_COUNT), 2.5,
            )
        )  # fmt: skip
    for size in SIZES[-1:] if quick else sizes:
        rows.append(
            Scenario(
                "pull of 32, 4 in flight", ASYNC, job("pull", size, 1, 4, codec),
                40.0 if size == SIZES[-1] else None, "pull",
            )
        )  # fmt: skip
    return rows + with_slave(codec, sizes) + over_tls(codec) + with_access_control(codec)
