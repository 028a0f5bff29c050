"""The load process: keeps a number of requests in flight and times the answers.

Reads one job as a JSON line from its input, runs it, writes one JSON line with the figures. The
CPU time of the process under load is read here, at both ends of the measured time.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

from skylarkmq.protocol.frame import SerializeType
from tests.bench.frames import (
    PULL_FROM,
    PULL_UP_TO,
    Frames,
    Refusal,
    Ring,
    batch_ring,
    fill_ring,
    pull_ring,
    send_ring,
    signed_ring,
    spread_ring,
    timer_ring,
)
from tests.bench.other_frames import Talk, talk

STALL_S = 20.0


@dataclass(frozen=True)
class Job:
    """What to do for how long."""

    kind: str  # send, batch, pull, fill, spread, timer
    port: int
    pid: int  # whose CPU time to measure
    topic: str = "bench"
    connections: int = 1
    window: int = 1  # requests in flight on each connection
    body_size: int = 128
    batch: int = 1
    codec: str = "JSON"
    check: bool = True  # answers must say SUCCESS; an echo cannot
    warm_s: float = 0.3
    seconds: float = 1.0
    messages: int = 0  # above 0: stop after so many instead
    limit_s: float = STALL_S  # that those may take
    topics: int = 1  # of kind spread
    queues: int = 1  # of kind spread
    expression: str = "*"  # of kind pull: the tags asked for
    begin_offset: int = PULL_FROM  # of kind pull: the first that is asked for
    end_offset: int = PULL_UP_TO  # of kind pull
    begin_ms: int = 0  # of kind timer: when the first is due
    span_ms: int = 0  # of kind timer: until the last is due
    protocol: str = "rocketmq"
    tls: bool = False
    signed: bool = False


@dataclass
class Figures:
    """What came of a job."""

    messages: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    load_cpu_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    failed: int = 0
    first_failure: str = ""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


class Peer(asyncio.Protocol):
    """One connection with its window of requests."""

    def __init__(self, run: Run, index: int) -> None:
        talk = run.talk
        self.run = run
        self.ring = talk.rings[index % len(talk.rings)]
        self.opening = talk.openings[index % len(talk.openings)]
        self.answers = talk.answers()
        self.next = index * 7 % self.ring.count  # place in the ring
        self.sent: deque[list[float]] = deque()  # [time, count] of what waits for an answer
        self.in_flight = 0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.opening:
            self.transport.write(self.opening)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.in_flight:
            self.run.fail("the connection was lost")

    def send(self, count: int) -> None:
        if self.transport is None:
            return
        # Before the write, in which the system may run the broker first.
        self.sent.append([time.perf_counter(), count])
        self.transport.write(self.ring.slice(self.next, count))
        self.next += count
        self.in_flight += count

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        try:
            answers = self.answers.feed(data)
        except Refusal as refusal:
            self.run.fail(str(refusal))
            return
        if answers:
            self.answered(answers, now)

    def answered(self, count: int, now: float) -> None:
        self.in_flight -= count
        left = count
        while left:
            first = self.sent[0]
            taken = min(left, int(first[1]))
            self.run.latency(now - first[0], taken)
            first[1] -= taken
            left -= taken
            if not first[1]:
                self.sent.popleft()
        if not self.run.stopping:
            self.send(count)
        elif not self.in_flight:
            self.run.idle(self)


class Run:
    """One job over its connections."""

    def __init__(self, job: Job, talk: Talk) -> None:
        self.job = job
        self.talk = talk
        self.figures = Figures()
        self.stopping = False
        self.measuring = False
        self.latencies: list[tuple[float, int]] = []
        self.answers = 0
        self.enough = asyncio.Event()
        self.busy: set[Peer] = set()
        self.all_idle = asyncio.Event()

    def latency(self, seconds: float, count: int) -> None:
        self.answers += count
        if self.measuring:
            self.latencies.append((seconds, count))
        if self.job.messages and self.answers >= self.job.messages:
            self.stopping = True
            self.enough.set()

    def fail(self, why: str) -> None:
        self.figures.failed += 1
        self.figures.first_failure = self.figures.first_failure or why
        self.enough.set()

    def idle(self, peer: Peer) -> None:
        self.busy.discard(peer)
        if not self.busy:
            self.all_idle.set()

    async def run(self) -> Figures:
        loop = asyncio.get_running_loop()
        peers: list[Peer] = []
        context = _context() if self.job.tls else None
        for index in range(self.job.connections):
            peer = Peer(self, index)
            await loop.create_connection(
                partial(_same, peer), "127.0.0.1", self.job.port, ssl=context
            )
            peers.append(peer)
        self.busy.update(peers)
        for peer in peers:
            peer.send(min(self.job.window, peer.ring.count))
        await (self.fill() if self.job.messages else self.measure())
        self.stopping = True
        if not self.figures.failed:
            await asyncio.wait_for(self.all_idle.wait(), STALL_S)
        for peer in peers:
            peer.in_flight = 0
            if peer.transport is not None:
                peer.transport.abort()
        return self.figures

    async def fill(self) -> None:
        started, cpu_s = time.perf_counter(), cpu_seconds(self.job.pid)
        self.measuring = True
        await asyncio.wait_for(self.enough.wait(), self.job.limit_s)
        self.measuring = False
        self.figures.seconds = time.perf_counter() - started
        self.figures.cpu_s = cpu_seconds(self.job.pid) - cpu_s
        self.figures.messages = self.answers
        self.note_latencies()

    async def measure(self) -> None:
        figures, pid = self.figures, self.job.pid
        await self.pause(self.job.warm_s)
        answers, cpu_s, own_s = self.answers, cpu_seconds(pid), time.process_time()
        started = time.perf_counter()
        self.measuring = True
        await self.pause(self.job.seconds)
        self.measuring = False
        figures.seconds = time.perf_counter() - started
        figures.cpu_s = cpu_seconds(pid) - cpu_s
        figures.load_cpu_s = time.process_time() - own_s
        figures.messages = (self.answers - answers) * self.talk.rings[0].messages
        self.note_latencies()

    def note_latencies(self) -> None:
        self.figures.p50_s = percentile(self.latencies, 0.50)
        self.figures.p99_s = percentile(self.latencies, 0.99)

    async def pause(self, seconds: float) -> None:
        if not self.figures.failed:
            try:
                await asyncio.wait_for(self.enough.wait(), seconds)
            except TimeoutError:
                return


def _same(peer: Peer) -> Peer:
    return peer


def _context() -> ssl.SSLContext:
    """A client that takes any certificate: the broker makes one for its run."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def percentile(latencies: list[tuple[float, int]], share: float) -> float:
    """The latency that a share of the answers did not exceed."""
    wanted = share * sum(count for _, count in latencies)
    seen = 0
    for seconds, count in sorted(latencies):
        seen += count
        if seen >= wanted:
            return seconds
    return 0.0


def ring_for(job: Job) -> Ring:
    codec = SerializeType[job.codec]
    if job.kind == "pull":
        return pull_ring(job.topic, codec, job.expression, job.begin_offset, job.end_offset)
    if job.kind == "fill":
        return fill_ring(job.topic, job.body_size, codec)
    if job.kind == "spread":
        return spread_ring(job.topic, job.body_size, codec, job.topics, job.queues)
    if job.kind == "timer":
        return timer_ring(job.topic, job.body_size, codec, job.begin_ms, job.span_ms)
    if job.kind == "batch":
        return batch_ring(job.topic, job.body_size, codec, job.batch)
    return send_ring(job.topic, job.body_size, codec)


def talk_for(job: Job) -> Talk:
    if job.protocol != "rocketmq":
        return talk(job)
    ring = ring_for(job)
    return Talk([signed_ring(ring) if job.signed else ring], lambda: Frames(job.check))


def main() -> None:
    last, said = None, None
    for line in sys.stdin:
        job = Job(**json.loads(line))
        kind = replace(job, port=0, pid=0)
        if said is None or kind != last:
            last, said = kind, talk_for(job)

        async def one(job: Job = job, said: Talk = said) -> Figures:
            return await Run(job, said).run()

        figures = uvloop.run(one())
        print(json.dumps(asdict(figures)), flush=True)


if __name__ == "__main__":
    main()
