"""Brokers that serve the gRPC protocol: ours, and RocketMQ's own of 5.3 with its proxy."""

from __future__ import annotations

import json
from pathlib import Path

from skylarkmq.protocol.codes import RequestCode
from tests.interop.accounts import ACCOUNTS, ROOT, accounts_file
from tests.interop.apache_server import SMALL_JVM, Apache5Broker, ask
from tests.interop.children import Children
from tests.interop.servers import Broker, Cluster
from tests.interop.skylark_server import SkylarkBroker
from tests.interop.v5.programs import HERE
from tests.support.patience import until_sync
from tests.support.ports import free_ports

POLL_MS_MIN = 500
"""RocketMQ's proxy lets no receive wait for less than 5 s; tests have no time for that."""
SOON = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 1000, "max": 2000, "multiplier": 2},
}
"""When a group's messages come again. Node's client knows no lists of times."""


class HasEndpoint:
    """Has an endpoint of the gRPC protocol on loopback."""

    grpc_port: int

    @property
    def endpoint(self) -> str:
        """Where clients connect to."""
        return f"127.0.0.1:{self.grpc_port}"


class SkylarkGrpcBroker(SkylarkBroker, HasEndpoint):
    """Ours, one process."""

    def __init__(
        self, children: Children, folder: Path, joins: Cluster | None = None, **keys: object
    ) -> None:
        (self.grpc_port,) = free_ports()
        super().__init__(children, folder, joins, grpcListenPort=self.grpc_port, **keys)

    def certify(self, path: Path) -> None:
        """Show this certificate, with its key, from the next start on."""
        self.keys["tls.server.certPath"] = path

    def secure(self) -> None:
        """Let in nobody but the accounts of accounts.py, from the next start on."""
        file = accounts_file(self.folder)
        file.parent.mkdir(parents=True)
        file.write_text(ACCOUNTS)
        self.keys |= {"aclEnable": "true", "rocketmqHome": self.folder / "home"}


class ApacheProxy(Apache5Broker, HasEndpoint):
    """RocketMQ's name server, and its broker and proxy in one JVM."""

    project = HERE / "apache"

    def __init__(
        self, children: Children, folder: Path, joins: Cluster | None = None, **keys: object
    ) -> None:
        (self.grpc_port, self.proxy_port) = free_ports(1)
        super().__init__(children, folder, joins, **{"recallMessageEnable": "true", **keys})
        self.proxy_keys: dict[str, object] = {}
        self.proxy_jvm = ("-Xmx512m", *SMALL_JVM[:4], "-XX:MaxDirectMemorySize=512m")

    def certify(self, path: Path) -> None:
        """Show this certificate, with its key, from the next start on."""
        file = str(path)
        self.proxy_keys |= {"tlsTestModeEnable": False, "tlsKeyPath": file, "tlsCertPath": file}

    def secure(self) -> None:
        """Let in nobody but the administrator of accounts.py, from the next start on."""
        provider = "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
        shared: dict[str, object] = {
            "authenticationEnabled": "true",
            "authenticationProvider": provider,
            "initAuthenticationUser": json.dumps({"username": ROOT[0], "password": ROOT[1]}),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": ROOT[0], "secretKey": ROOT[1]}
            ),
        }
        local = provider.replace("DefaultAuthentication", "LocalAuthenticationMetadata")
        proxy = "org.apache.rocketmq.proxy.auth.ProxyAuthenticationMetadataProvider"
        self.keys |= {**shared, "authenticationMetadataProvider": local}
        self.proxy_keys |= {**shared, "authenticationMetadataProvider": proxy}
        self._write_configuration()

    def register(self) -> None:
        """The same; one with accounts takes no such request, and is waited for."""
        if "authenticationEnabled" in self.keys:
            self.registered()
        else:
            super().register()

    def start(self) -> None:
        self.started = "boot success"
        self._start("namesrv", "org.apache.rocketmq.namesrv.NamesrvStartup", SMALL_JVM)
        self._start_proxy("LOCAL", "-bc", str(self.folder / "home" / "broker.conf"))
        self.register()

    def _start_proxy(self, mode: str, *args: str) -> None:
        home = self.folder / "home"
        proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": mode,
            "namesrvAddr": self.namesrv,
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": self.proxy_port,
            "grpcClientConsumerMinLongPollingTimeoutMillis": POLL_MS_MIN,
            **self.proxy_keys,
        }
        (home / "proxy.json").write_text(json.dumps(proxy))
        (home / "conf" / "rmq.proxy.logback.xml").write_text(
            (home / "conf" / "rmq.broker.logback.xml").read_text()
        )
        args = ("-n", self.namesrv, "-pm", mode.lower(), "-pc", str(home / "proxy.json"), *args)
        self.started = "startup successfully"
        self._start("proxy", "org.apache.rocketmq.proxy.ProxyStartup", self.proxy_jvm, args)


class ApacheClusterProxy(ApacheProxy):
    """RocketMQ's proxy alone, for the brokers of a cluster, with news of them within a second."""

    def start(self) -> None:
        self.proxy_keys |= {
            "transactionHeartbeatPeriodSecond": 1,
            "topicRouteServiceCacheRefreshSeconds": 1,
        }
        self._start_proxy("CLUSTER")


def make_topic(broker: Broker | int, topic: str, kind: str = "NORMAL", queues: int = 2) -> None:
    """Make a topic of a type: NORMAL, FIFO, DELAY, TRANSACTION; a broker, or its port."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": f"+message.type={kind}",
    }
    _told(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def make_group(
    broker: Broker | int, group: str, *, orderly: bool = False, max_retries: int = 16
) -> None:
    """Make a group whose messages come again after a second or two."""
    settings = {
        "groupName": group,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "consumeMessageOrderly": orderly,
        "retryQueueNums": 1,
        "retryMaxTimes": max_retries,
        "groupRetryPolicy": SOON,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    body = json.dumps(settings).encode()
    _told(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def _told(
    broker: Broker | int, code: RequestCode, fields: dict[str, str], body: bytes = b""
) -> None:
    port = broker if isinstance(broker, int) else broker.port

    def answered() -> bool:
        return ask(port, code, fields, body).code == 0

    until_sync(answered, f"the broker to take {fields} {body!r}")


def dead_letters(broker: Broker, group: str) -> int:
    """Return how many dead letters a group has."""
    fields = {"topic": f"%DLQ%{group}", "queueId": "0"}
    answer = ask(broker.port, RequestCode.GET_MAX_OFFSET, fields)
    return int(answer.ext_fields["offset"]) if answer.code == 0 else 0
