"""Every default is RocketMQ 4.9.8's number, or a difference that is stated here with its reason.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../BrokerConfig.java, namesrv/NamesrvConfig.java,
store/.../config/MessageStoreConfig.java, remoting/.../netty/NettyServerConfig.java,
TlsSystemConfig.java, broker/.../BrokerStartup.java; keys of RocketMQ 5 from their 5.3.1 classes
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.common.config_fields import key_of
from skylarkmq.store.config import StoreConfig

CPUS = os.cpu_count() or 1
MIB = 1 << 20


class Other(NamedTuple):
    """A default that is not RocketMQ's."""

    theirs: Any
    """None: RocketMQ has no such key."""
    ours: Any
    why: str


ROOT = Path("/store")
STORE: dict[str, Any] = {
    "storePathRootDir": ROOT,  # has no default here; the loader's is RocketMQ's $HOME/store
    "storePathCommitLog": None,
    "mappedFileSizeCommitLog": 1_073_741_824,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "enableConsumeQueueExt": False,
    "mappedFileSizeConsumeQueueExt": 50_331_648,
    "bitMapLengthConsumeQueueExt": 64,
    "maxMessageSize": 4_194_304,
    "flushDiskType": "ASYNC_FLUSH",
    "flushIntervalCommitLog": 500,
    "flushCommitLogTimed": True,
    "flushCommitLogLeastPages": Other(4, 0, "the window of a power cut is 500 ms, not up to 10 s"),
    "flushCommitLogThoroughInterval": 10_000,
    "commitIntervalCommitLog": 200,
    "commitCommitLogLeastPages": 4,
    "commitCommitLogThoroughInterval": 200,
    "flushIntervalConsumeQueue": 1000,
    "flushConsumeQueueLeastPages": 2,
    "flushConsumeQueueThoroughInterval": 60_000,
    "syncFlushTimeout": 5000,
    "slaveTimeout": 3000,
    "transientStorePoolEnable": False,
    "transientStorePoolSize": 5,
    "fastFailIfNoBufferInStorePool": False,
    "warmMapedFileEnable": False,
    "flushLeastPagesWhenWarmMapedFile": 4096,
    "useReentrantLockWhenPutMessage": True,
    "osPageCacheBusyTimeOutMills": 1000,
    "deleteWhen": "04",
    "fileReservedTime": 72,
    "diskMaxUsedSpaceRatio": 75,
    "diskSpaceCleanForciblyRatio": 85,
    "diskSpaceWarningLevelRatio": 90,
    "cleanFileForciblyEnable": True,
    "cleanResourceInterval": 10_000,
    "deleteCommitLogFilesInterval": 100,
    "deleteConsumeQueueFilesInterval": 100,
    "destroyMapedFileIntervalForcibly": 120_000,
    "redeleteHangedFileInterval": 120_000,
    "checkCRCOnRecover": True,
    "duplicationEnable": False,
    "maxTransferBytesOnMessageInMemory": 262_144,
    "maxTransferCountOnMessageInMemory": 32,
    "maxTransferBytesOnMessageInDisk": 65_536,
    "maxTransferCountOnMessageInDisk": 8,
    "accessMessageInMemoryMaxRatio": 40,
    "diskFallRecorded": True,
    "messageIndexEnable": True,
    "messageIndexSafe": False,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "maxMsgsNumBatch": 64,
    "defaultQueryMaxNum": 32,
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "flushDelayOffsetInterval": 10_000,
    "enableScheduleAsyncDeliver": False,
    "timerWheelEnable": True,  # of RocketMQ 5, as all that begin with timer
    "timerPrecisionMs": 1000,
    "timerMaxDelaySec": 259_200,
    "timerFlushIntervalMs": 1000,
    "brokerRole": "ASYNC_MASTER",
    "haListenPort": None,  # listenPort + 1, in RocketMQ whatever is set
    "haMasterAddress": None,
    "haSendHeartbeatInterval": 5000,
    "haHousekeepingInterval": 20_000,
    "haTransferBatchSize": 32_768,
    "haSlaveFallbehindMax": 268_435_456,
    "haCopyFrom": Other(None, "lastFile", "RocketMQ's slaves begin there, and nowhere else"),
    "offsetCheckInSlave": False,
    "enableLmq": False,
    "enableMultiDispatch": False,
    "maxLmqConsumeQueueNum": 20_000,
    "commitLogWriteMode": Other(None, "pwrite", "RocketMQ always maps; a full disk is no SIGBUS"),
    "storeFailureExit": Other(None, True, "RocketMQ goes on after a failed sync"),
}

SERVER: dict[str, Any] = {
    "aclEnable": False,  # of brokers; a name server has no access control there
    "auditLogPath": None,  # ours
    "rocketmqHome": None,  # there an environment variable or a property of the JVM
    "bindAddress": Other("0.0.0.0", "127.0.0.1", "open to others only when told so"),
    "logLevel": "INFO",  # ours
    "maxConnections": Other(None, 10_000, "every table has a limit"),
    "maxConnectionsPerAddress": Other(None, 0, "half of maxConnections for one address"),
    "serverChannelMaxIdleTimeSeconds": 120,
    "serverWorkerThreads": 8,
    "serverSelectorThreads": 3,
    "serverCallbackExecutorThreads": 0,
    "serverOnewaySemaphoreValue": 256,
    "serverAsyncSemaphoreValue": 64,
    "serverSocketSndBufSize": None,  # the system's
    "serverSocketRcvBufSize": None,
    "useEpollNativeSelector": False,
    "orderMessageEnable": False,
}

BROKER: dict[str, Any] = {
    **SERVER,
    "brokers": Other(None, 1, "one process, unless more cores are asked for"),
    "hungProcessTimeoutSeconds": Other(
        None, 60, "as long as the loop of a live broker may be silent"
    ),
    "brokerClusterName": "DefaultCluster",
    "brokerName": "DEFAULT_BROKER",  # where the host has no name; else that is the loader's
    "brokerId": 0,
    "brokerIP1": None,  # found at the start
    "brokerIP2": None,
    "regionId": "DefaultRegion",
    "brokerPermission": 6,
    "listenPort": 10911,
    "namesrvListenPort": Other(None, 9876, "RocketMQ's name server is a process of its own"),
    "grpcListenPort": None,  # ours, as RocketMQ 5's proxy is a process of its own
    "grpcAdvertisedAddress": None,
    "grpcProxyMode": Other(
        None, "LOCAL", "proxyMode of RocketMQ 5's proxy, which is CLUSTER there"
    ),
    "metricsPromExporterPort": 5557,  # of RocketMQ 5
    "metricsPromExporterHost": None,
    "maxInboundBuffered": Other(None, 256 * MIB, "every buffer has a limit"),
    "maxOutboundBuffered": Other(None, 256 * MIB, "every buffer has a limit"),
    "namesrvAddr": None,
    "fetchNamesrvAddrByAddressServer": False,
    "registerNameServerPeriod": 30_000,
    "registerBrokerTimeoutMills": 6000,
    "forceRegister": True,
    "compressedRegister": False,
    "autoCreateTopicEnable": True,
    "autoCreateSubscriptionGroup": True,
    "defaultTopicQueueNums": 8,
    "clusterTopicEnable": True,
    "brokerTopicEnable": True,
    "traceTopicEnable": False,
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "grpcAutoCreateTopicEnable": Other(None, False, "a question for a route says not who asks"),
    "maxTopics": Other(None, 50_000, "every table has a limit"),
    "maxGroups": Other(None, 50_000, "every table has a limit"),
    "maxDeduplicationKeys": Other(None, 1_000_000, "every table has a limit"),
    "newNamesPerSecond": Other(None, 100, "one peer does not fill the tables"),
    "flushConsumerOffsetInterval": 5000,
    "popInflightMaxPerQueue": Other(None, 10_000, "every table has a limit; 5.x's is off"),
    "popInflightMaxPerGroup": Other(None, 100_000, "every table has a limit"),
    "popInflightMax": Other(None, 1_000_000, "every table has a limit"),
    "enableRetryTopicV2": Other(None, False, "as 5.x has it"),
    "consumeYoungQueueFromFirst": Other(None, True, "RocketMQ's rule, which has no key there"),
    "startAcceptSendRequestTimeStamp": 0,
    "rejectTransactionMessage": False,
    "longPollingEnable": True,
    "shortPollingTimeMills": 1000,
    "notifyConsumerIdsChangedEnable": True,
    "slaveReadEnable": False,
    "haAllowedAddresses": None,  # ours
    "controllerEndpoints": None,  # ours
    "controllerUser": "",  # ours
    "controllerPasswordFile": None,  # ours
    "controllerLeaseTtl": 10,  # ours
    "minInSyncReplicas": 1,
    "allAckInSyncStateSet": Other(False, True, "visible means it survives a failover"),
    "haMaxTimeSlaveNotCatchup": 15_000,
    "brokerElectionPriority": 2_147_483_647,
    "transferMsgByHeap": True,
    "disableConsumeIfConsumerReadSlowly": False,
    "consumerFallbehindThreshold": 17_179_869_184,
    "storeReplyMessageEnable": True,
    "traceOn": True,
    "brokerFastFailureEnable": True,
    "waitTimeMillsInSendQueue": 200,
    "waitTimeMillsInPullQueue": 5000,
    "waitTimeMillsInHeartbeatQueue": 31_000,
    "waitTimeMillsInTransactionQueue": 3000,
    "transactionTimeOut": 6000,
    "transactionCheckMax": 15,
    "transactionCheckInterval": 60_000,
    "enablePropertyFilter": False,
    "enableCalcFilterBitMap": False,
    "expectConsumerNumUseFilter": 32,
    "maxErrorRateOfBloomFilter": 20,
    "filterSupportRetry": False,
    "filterDataCleanTimeSpan": 86_400_000,
    "enableDetailStat": True,
    "autoDeleteUnusedStats": False,
    "sendMessageThreadPoolNums": min(CPUS, 4),
    "pullMessageThreadPoolNums": 16 + 2 * CPUS,
    "queryMessageThreadPoolNums": 8 + CPUS,
    "adminBrokerThreadPoolNums": 16,
    "clientManageThreadPoolNums": 32,
    "consumerManageThreadPoolNums": 32,
    "sendThreadPoolQueueCapacity": 10_000,
    "pullThreadPoolQueueCapacity": 100_000,
    "queryThreadPoolQueueCapacity": 20_000,
}

NAMESRV: dict[str, Any] = {
    **SERVER,
    "listenPort": 9876,
    "clusterTest": False,
    "productEnvName": "center",
    "kvConfigPath": None,  # the loader's is RocketMQ's $HOME/namesrv/kvConfig.json
    "configStorePath": None,
}


TLS: dict[str, Any] = {
    "tls.server.mode": "permissive",
    "tls.server.certPath": None,
    "tls.server.keyPath": None,
    "tls.server.keyPassword": None,
    "tls.test.mode.enable": True,
    "tls.server.need.client.auth": "none",
    "tls.server.trustCertPath": None,
    "tls.server.authClient": False,
    "tls.enable": None,  # theirs is false, and true in enforcing mode; so is ours
    "tls.client.authServer": Other(False, True, "a server that nobody checks can be anybody"),
    "tls.client.trustCertPath": None,
    "tls.client.certPath": None,
    "tls.client.keyPath": None,
    "tls.client.keyPassword": None,
    "tls.config.file": None,  # the loader's is RocketMQ's /etc/rocketmq/tls.properties
}


def defaults(config: Any) -> dict[str, Any]:
    return {
        key_of(field.name): getattr(config, field.name)
        for field in fields(config)
        if field.name not in ("store", "tls")
    }


STORE_CONFIG = StoreConfig(store_path_root_dir=ROOT)


@pytest.mark.parametrize(
    ("config", "table"),
    [
        (STORE_CONFIG, STORE),
        (BrokerConfig(store=STORE_CONFIG), BROKER),
        (NamesrvConfig(), NAMESRV),
        (TlsConfig(), TLS),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_default_is_rocketmqs_or_a_stated_difference(
    config: Any, table: dict[str, Any]
) -> None:
    for value in table.values():
        assert not isinstance(value, Other) or (value.theirs != value.ours and value.why)
    wanted = {k: v.ours if isinstance(v, Other) else v for k, v in table.items()}
    found = defaults(config)
    assert found.keys() == wanted.keys(), "a new key is stated in this file's tables, too"
    assert found == wanted
