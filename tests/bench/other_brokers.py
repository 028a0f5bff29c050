"""Brokers of other kinds, for comparison: NATS JetStream, Redis streams and Kafka.

All keep messages in files. Where we flush asynchronously they flush once a second (Redis's
`everysec`, which its documentation advises; the others' own defaults leave it to the system or to
two minutes), and under SYNC_FLUSH each message before it is acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.bench.frames import QUEUE_COUNT, Answers, Frames, Refusal
from tests.bench.load import Job
from tests.bench.other_frames import (
    Marks,
    kafka_metadata,
    nats_opening,
    nats_publish,
    resp,
    talk,
)
from tests.bench.peers import ROOT, Server, process
from tests.bench.scenarios import SYNC
from tests.interop.java import java, why_not
from tests.support.ports import free_ports

KAFKA_PROJECT = Path(__file__).resolve().parent / "kafka"
NATS_MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
BUILT = ROOT / "var" / "peers"
INBOX = "_INBOX.prepare"
TOPICS = ("bench-send", "bench-batch", "bench-pull")
START_LIMIT_S = 60.0
ANSWER_LIMIT_S = 5.0
# What kafka-run-class.sh gives the JVM, and kafka-server-start.sh as its heap.
KAFKA_JVM = (
    "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


class Other:
    """A broker of another kind that can be started again on its store."""

    name = ""
    protocol = ""

    def __init__(self, folder: Path, flush: str) -> None:
        self.folder = folder
        self.is_sync = flush == SYNC
        (self.port,) = free_ports()
        self._running = contextlib.ExitStack()

    def start(self) -> Server:
        log = self._running.enter_context((self.folder / "broker.log").open("ab"))
        child = self._running.enter_context(process(self.command(), stdout=log, stderr=log))
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                for topic in TOPICS:
                    self.prepare(topic)
            except (OSError, Refusal) as error:
                if child.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} does not start: {error}") from error
                time.sleep(0.1)
            else:
                return Server(child.pid, self.port, protocol=self.protocol)

    def stop(self) -> None:
        self._running.close()

    def command(self) -> list[str]:
        """What starts it; writes its configuration."""
        raise NotImplementedError

    def prepare(self, topic: str) -> None:
        """Make a topic; raises OSError or Refusal while it is not ready."""
        raise NotImplementedError

    def ask(self, request: bytes, answers: Answers) -> None:
        """Send a request on a connection of its own, and wait for the answer."""
        with socket.create_connection(("127.0.0.1", self.port), ANSWER_LIMIT_S) as peer:
            peer.sendall(request)
            while data := peer.recv(1 << 16):
                if answers.feed(data):
                    return
        raise ConnectionResetError("closed instead of an answer")

    def written(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


class Nats(Other):
    name = "NATS"
    protocol = "nats"

    @staticmethod
    def why_not() -> str:
        """Build the server if need be; why it cannot be had, or nothing."""
        if shutil.which("nats-server", path=str(BUILT)):
            return ""
        if shutil.which("go") is None:
            return "not installed: go, which builds nats-server"
        command = ["env", f"GOBIN={BUILT}", "go", "install", NATS_MODULE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"go install {NATS_MODULE}: {done.stderr.strip()}" if done.returncode else ""

    def command(self) -> list[str]:
        sync = "always" if self.is_sync else "1s"
        store = json.dumps(str(self.folder / "store"))
        text = f"jetstream {{ store_dir: {store}, sync_interval: {sync} }}\nping_interval: 1h\n"
        path = self.written("nats.conf", text)
        return [str(BUILT / "nats-server"), "-a", "127.0.0.1", "-p", str(self.port), "-c", path]

    def prepare(self, topic: str) -> None:
        stream = {"name": topic, "subjects": [topic], "storage": "file", "allow_direct": True}
        request = nats_publish(f"$JS.API.STREAM.CREATE.{topic}", INBOX, json.dumps(stream).encode())
        self.ask(nats_opening(INBOX) + request, Marks(b'"config":', (b'"error"', b"-ERR")))


class Redis(Other):
    name = "Redis"
    protocol = "redis"

    @staticmethod
    def why_not() -> str:
        return "" if shutil.which("redis-server") else "not installed: redis-server"

    def command(self) -> list[str]:
        keys = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self.folder,
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "always" if self.is_sync else "everysec",
            "auto-aof-rewrite-percentage": 0,  # a process of its own would do it
        }
        text = "".join(f"{key} {value}\n" for key, value in keys.items())
        return ["redis-server", self.written("redis.conf", text)]

    def prepare(self, topic: str) -> None:
        self.ask(resp("EXISTS", topic), Marks(b"\n", (b"-LOADING",)))


class Kafka(Other):
    name = "Kafka"
    protocol = "kafka"

    @staticmethod
    def why_not() -> str:
        return why_not(KAFKA_PROJECT)

    def command(self) -> list[str]:
        (controller,) = free_ports()
        keys = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.folder / "store",
            "num.partitions": QUEUE_COUNT,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.flush.scheduler.interval.ms": 1000,
            "log.flush.interval.ms": 1000,
        }
        if self.is_sync:
            keys["log.flush.interval.messages"] = 1
        path = self.written("kafka.conf", "".join(f"{key}={keys[key]}\n" for key in keys))
        if not (self.folder / "store").exists():
            cluster = ("-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", path)
            command = java(KAFKA_PROJECT, "kafka.tools.StorageTool", "format", *cluster)
            subprocess.run(command, capture_output=True, text=True, check=True)
        return java(KAFKA_PROJECT, "kafka.Kafka", path, jvm=KAFKA_JVM)

    def prepare(self, topic: str) -> None:
        """Ask for it, which creates it, until a message to each queue is taken."""
        self.ask(kafka_metadata(topic), Frames(check=False))
        said = talk(Job("send", 0, 0, topic, protocol=self.protocol))
        for index in range(QUEUE_COUNT):
            self.ask(bytes(said.rings[0].slice(index, 1)), said.answers())


OTHERS: dict[str, type[Nats | Redis | Kafka]] = {"nats": Nats, "redis": Redis, "kafka": Kafka}
