"""RocketMQ's own name server and broker as processes: what the tests are proved against.

By hand, to try a client on them until Ctrl-C or SIGTERM:

    .venv/bin/python -m tests.interop.apache_server
"""

from __future__ import annotations

import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import ClassVar

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from tests.interop.children import Child, Children
from tests.interop.java import APACHE, APACHE_5, JVM, java
from tests.interop.servers import Broker, Cluster
from tests.support.patience import LIMIT_S
from tests.support.ports import free_ports

# JDK 17 hides what 4.9 reaches by reflection to unmap files and to lock memory.
OPENED = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
SMALL_JVM = (*JVM, "-Xmx192m", "-XX:MaxDirectMemorySize=512m")
LOGGING = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <logger name="RocketmqTransaction" level="ERROR"/>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class ApacheBroker(Broker):
    """A pair of JVMs on loopback, data and configuration below `folder`: 4.9."""

    kind = "apache"
    project = APACHE
    logging_file = "logback_{}.xml"
    namesrv_keys: ClassVar[dict[str, object]] = {}
    started = "boot success"
    """What each JVM says when it serves."""

    def __init__(
        self, children: Children, folder: Path, joins: Cluster | None = None, **keys: object
    ) -> None:
        super().__init__(children, folder, joins, **keys)
        self.options: tuple[str, ...] = ()
        """Of both JVMs, to be set before `start`."""
        self.broker_jvm: tuple[str, ...] = SMALL_JVM
        self._running: list[Child] = []
        (self.namesrv_port,) = [0] if joins else free_ports()
        self.port = free_ports(-2, 1)[0]  # the fast port, and one for replication
        self._write_configuration()

    def start(self) -> None:
        if not self.joins:
            self._start("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", SMALL_JVM)
        self._start("broker", "org.apache.rocketmq.broker.BrokerStartup", self.broker_jvm)

    def stop(self) -> None:
        while self._running:
            self._running.pop().stop()

    def kill(self) -> None:
        while self._running:
            self._running.pop().kill()

    def kill_broker(self) -> None:
        """Leave the name server running."""
        self._running.pop().kill()

    def end(self) -> None:
        for child in self.children.all:  # a clean stop takes ten seconds
            child.kill()

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._running[-1].pid

    def _start(
        self, name: str, main: str, jvm: tuple[str, ...], args: tuple[str, ...] = ()
    ) -> None:
        home = self.folder / "home"
        log = home / "conf" / self.logging_file.format(name)
        options = (*OPENED, f"-Duser.home={home}", f"-Drocketmq.home.dir={home}")
        options = (*options, f"-Drmq.logback.configurationFile={log}", *self.options)
        args = args or ("-c", str(home / f"{name}.conf"))
        command = java(self.project, main, *args, options=options, jvm=jvm)
        child = self.children.start(f"apache-{name}", command, one_stream=True)
        self._running.append(child)
        child.wait_for("its start", lambda: any(self.started in line for line in child.lines))

    def _write_configuration(self) -> None:
        home, store = self.folder / "home", self.folder / "store"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):
            (home / "conf" / self.logging_file.format(name)).write_text(LOGGING)
        namesrv = {
            "listenPort": self.namesrv_port,
            "kvConfigPath": home / "kvConfig.json",
            "configStorePath": home / "namesrv.properties",
            **self.namesrv_keys,
        }
        broker = {
            "namesrvAddr": self.namesrv,
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.name,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "diskMaxUsedSpaceRatio": 95,
            **self.keys,
        }
        for name, keys in (("namesrv", namesrv), ("broker", broker)):
            text = "".join(f"{key}={value}\n" for key, value in keys.items())
            (home / f"{name}.conf").write_text(text)


class ApacheNameServer(ApacheBroker):
    """The name server alone, with the queues of ordered topics in its routes."""

    namesrv_keys: ClassVar[dict[str, object]] = {"orderMessageEnable": "true"}

    def start(self) -> None:
        self._start("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", SMALL_JVM)


class Apache5Broker(ApacheBroker):
    """The same of 5.3, with its timers of any delay; without proxy or controller."""

    kind = "apache53"
    project = APACHE_5
    logging_file = "rmq.{}.logback.xml"

    def __init__(
        self, children: Children, folder: Path, joins: Cluster | None = None, **keys: object
    ) -> None:
        # It notes every 3 s which transactions have ended; until then it asks about them again.
        super().__init__(children, folder, joins, **{"transactionOpBatchInterval": 50, **keys})

    def start(self) -> None:
        """Start; a topic is refused by its name server before the broker has registered whole,
        which it does by itself ten seconds late, and at once when its permission is set.
        """
        super().start()
        self.register()

    def register(self) -> None:
        """Have the broker tell its name server all that it has, and wait until it has."""
        ask(self.port, RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n")
        self.registered()

    def registered(self) -> None:
        """Wait until the name server knows the broker."""
        deadline = time.monotonic() + LIMIT_S
        name = self.name.encode()
        port = int(self.namesrv.rpartition(":")[2])
        while name not in ask(port, RequestCode.GET_BROKER_CLUSTER_INFO).body:
            assert time.monotonic() < deadline, "the broker does not register"
            time.sleep(0.05)


def ask(
    port: int, code: RequestCode, fields: dict[str, str] | None = None, body: bytes = b""
) -> RemotingCommand:
    """Return the answer to one request on a connection of its own."""
    decoder = FrameDecoder()
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as peer:
        peer.sendall(encode_command(RemotingCommand.request(code, fields or {}, body)))
        while data := peer.recv(1 << 16):
            for frame in decoder.feed(data):
                return decode_command(frame)
    raise AssertionError("the connection was closed instead of an answer")


def main() -> None:
    """Run the pair on free ports and a store that is thrown away; ended by SIGINT or SIGTERM."""
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with tempfile.TemporaryDirectory(prefix="apache-") as name:
        broker = ApacheBroker(Children(Path(name)), Path(name))
        try:
            broker.start()
            print(f"name server {broker.namesrv}, broker 127.0.0.1:{broker.port}", flush=True)
            signal.sigwait(ends)
        finally:
            broker.end()


if __name__ == "__main__":
    main()
