"""What a broker says of itself to name servers.

What it registers as is its role: of the configuration, or, where replicas elect their master, what
they say while it runs. One without a role is registered nowhere, and said good-bye where it was. An
elected master tells the term of its election; a name server of ours refuses it once a later one has
registered.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../BrokerController.java (registerBrokerAll),
broker/.../out/BrokerOuterAPI.java
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from skylarkmq.broker.config.settings import READ_WRITE, BrokerConfig
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.crc import body_crc
from skylarkmq.protocol.bodies.route import RegisterBrokerBody, encode_compressed_registration
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig, TopicConfigSerializeWrapper
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.headers.fields import encode_fields
from skylarkmq.protocol.headers.route import (
    QueryDataVersionRequestHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
)

PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
# A registration up to its topics, as `encode_body` writes it.
_HEAD: Final = b'{"filterServerList":[],"topicConfigSerializeWrapper":'


@dataclass(frozen=True, slots=True)
class RegisteredRole:
    """What a broker registers as: id 0 is the master."""

    broker_id: int
    term: int  # of its election; 0 for a slave, and for a master that is configured


class Registration:
    """What this broker says of itself. Loop thread.

    Attributes:
        role: what it registers as; None: it registers nowhere.
        withheld: permissions that clients are told of topics in place of their own.
    """

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        address: str,
        ha_port: int | None = None,
    ) -> None:
        """Make it.

        Args:
            ha_port: where slaves connect; None: nobody listens for them, but the header of 103 has
                no way to say so, and gets the port of the configuration.
        """
        host, _, port = address.rpartition(":")
        self.config = config
        self.role = None if config.is_replica else RegisteredRole(config.broker_id, 0)
        self.address = address
        self.withheld: Mapping[str, int] = {}
        ha_port = config.ha_port(int(port)) if ha_port is None else ha_port
        self._ha_server_address = f"{config.broker_ip2 or host}:{ha_port}"
        period_ms = min(max(config.register_name_server_period, PERIOD_MS_MIN), PERIOD_MS_MAX)
        self.period_s = period_ms / 1000
        self._topics = topics

    def body(self, names: set[str] | None = None) -> RegisterBrokerBody:
        """Return all topics, or those of `names` that are there, as they are now."""
        table = self._topics.table
        table = (
            dict(table) if names is None else {name: table[name] for name in names & table.keys()}
        )
        if self._is_restricted:
            table = {name: self.as_registered(topic) for name, topic in table.items()}
        wrapper = TopicConfigSerializeWrapper(
            data_version=self._topics.data_version, topic_config_table=table
        )
        return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)

    def header(self, *, compressed: bool = False, crc: int = 0) -> RegisterBrokerRequestHeader:
        """Return the header of a registration; there is a role."""
        role = self.role
        assert role is not None, "nothing is registered without a role"
        return RegisterBrokerRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            ha_server_addr=self._ha_server_address,
            broker_id=role.broker_id,
            compressed=compressed,
            body_crc32=crc,
            term=role.term or None,
        )

    def command(self, names: set[str] | None = None) -> RemotingCommand:
        """Return a registration of all topics, or of those of `names`.

        Raises:
            LocalProtocolError: a text that UTF-8 cannot carry.
        """
        compressed = self.config.compressed_register
        content = self.body(names)
        body = encode_compressed_registration(content) if compressed else encode_body(content)
        header = self.header(compressed=compressed, crc=body_crc(body))
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, encode_fields(header), body)

    async def full_command(self) -> RemotingCommand:
        """Return a registration of all topics, whose text is not made anew while none changes.

        Raises:
            LocalProtocolError: a text that UTF-8 cannot carry.
        """
        if self.config.compressed_register or self._is_restricted:
            return self.command()
        body = _HEAD + await self._topics.body.encoded() + b"}"
        fields = encode_fields(self.header(crc=body_crc(body)))
        return RemotingCommand.request(RequestCode.REGISTER_BROKER, fields, body)

    def query(self, role: RegisteredRole) -> RemotingCommand:
        """Return the question whether the name server has another version of the topics."""
        header = QueryDataVersionRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            broker_id=role.broker_id,
        )
        body = encode_body(self._topics.data_version)
        return RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, encode_fields(header), body)

    def good_bye(self, role: RegisteredRole) -> RemotingCommand:
        """Return the end of the registration as `role`."""
        header = UnRegisterBrokerRequestHeader(
            broker_name=self.config.broker_name,
            broker_addr=self.address,
            cluster_name=self.config.broker_cluster_name,
            broker_id=role.broker_id,
        )
        return RemotingCommand.request(RequestCode.UNREGISTER_BROKER, encode_fields(header))

    @property
    def _is_restricted(self) -> bool:
        return self.config.broker_permission != READ_WRITE or bool(self.withheld)

    def as_registered(self, topic: TopicConfig) -> TopicConfig:
        """Return a topic with the permission that clients are told."""
        allowed = self.config.broker_permission
        perm = topic.perm if allowed == READ_WRITE else allowed
        perm &= self.withheld.get(topic.topic_name, perm)
        return msgspec.structs.replace(topic, perm=perm)
