"""What the keys of the configuration do here: those without effect, those whose values are refused.

A key that would promise what is not built is refused at the start; one that only tunes something
which works otherwise here, or which other values leave out, is accepted, and all such keys that
somebody set are named in one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

# Older spellings that RocketMQ's documentation still shows.
ALIASES: Final = {
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
}

# Keys of Java brokers and of widely copied files that have no attribute here; any value is taken.
JAVA_ONLY: Final = frozenset(
    {
        "abortFile",
        "brokerConfigPath",
        "checkTransactionMessageEnable",
        "clientManagerThreadPoolQueueCapacity",
        "consumerManagerThreadPoolQueueCapacity",
        "debugLockEnable",
        "endTransactionPoolQueueCapacity",
        "endTransactionThreadPoolNums",
        "filterServerNums",
        "heartbeatThreadPoolNums",
        "heartbeatThreadPoolQueueCapacity",
        "highSpeedMode",
        "processReplyMessageThreadPoolNums",
        "putMessageFutureThreadPoolNums",
        "putMsgIndexHightWater",
        "putThreadPoolQueueCapacity",
        "replyThreadPoolQueueCapacity",
        "rocketmqHome",
        "serverPooledByteBufAllocatorEnable",
        "serverSocketBacklog",
        "storeCheckpoint",
        "storePathConsumeQueue",
        "storePathIndex",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    }
)

# Known keys that change nothing here: what they tune works otherwise or is not built. A test holds
# this list against the code.
WITHOUT_EFFECT: Final = frozenset(
    {
        "adminBrokerThreadPoolNums",
        "autoDeleteUnusedStats",
        "bitMapLengthConsumeQueueExt",  # follows from the keys of the Bloom filter, as in RocketMQ
        "clientManageThreadPoolNums",
        "configStorePath",
        "consumerManageThreadPoolNums",
        "destroyMapedFileIntervalForcibly",
        "enableDetailStat",
        "enableScheduleAsyncDeliver",
        "haHousekeepingInterval",
        "haMasterAddress",
        "haSendHeartbeatInterval",
        "haSlaveFallbehindMax",
        "haTransferBatchSize",
        "maxLmqConsumeQueueNum",
        "messageIndexSafe",  # whatever the index lacks after a crash is always read again
        "offsetCheckInSlave",
        "productEnvName",
        "pullMessageThreadPoolNums",
        "queryMessageThreadPoolNums",
        "sendMessageThreadPoolNums",
        "serverAsyncSemaphoreValue",
        "serverCallbackExecutorThreads",
        "serverOnewaySemaphoreValue",
        "serverSelectorThreads",
        "serverSocketRcvBufSize",
        "serverSocketSndBufSize",
        "serverWorkerThreads",
        "slaveTimeout",
        "transferMsgByHeap",
        "useEpollNativeSelector",
        "useReentrantLockWhenPutMessage",
    }
)

ABOVE_ZERO: Final = object()

_POOL: Final = {"transientStorePoolEnable": True}
_ASYNC: Final = {"flushDiskType": "ASYNC_FLUSH"}
_MAPPED: Final = {"transientStorePoolEnable": False, "commitLogWriteMode": "mapped"}
_FAST_FAILURE: Final = {"brokerFastFailureEnable": True}
_TIMERS: Final = {"timerWheelEnable": True}

# Key -> the values that other keys must have for it to do anything.
NEEDED: Final[dict[str, dict[str, Any]]] = {
    "commitCommitLogLeastPages": {**_POOL, **_ASYNC},
    "commitCommitLogThoroughInterval": {**_POOL, **_ASYNC},
    "commitIntervalCommitLog": {**_POOL, **_ASYNC},
    "commitLogWriteMode": {"transientStorePoolEnable": False},
    "consumerFallbehindThreshold": {"disableConsumeIfConsumerReadSlowly": True},
    "disableConsumeIfConsumerReadSlowly": {"diskFallRecorded": True},
    "enableCalcFilterBitMap": {"enableConsumeQueueExt": True},
    "fastFailIfNoBufferInStorePool": _POOL,
    "flushCommitLogLeastPages": _ASYNC,
    "flushCommitLogThoroughInterval": {**_ASYNC, "flushCommitLogLeastPages": ABOVE_ZERO},
    "flushCommitLogTimed": _ASYNC,
    "flushLeastPagesWhenWarmMapedFile": {**_MAPPED, "warmMapedFileEnable": True},
    "shortPollingTimeMills": {"longPollingEnable": False},
    "syncFlushTimeout": {"flushDiskType": "SYNC_FLUSH"},
    "timerFlushIntervalMs": _TIMERS,
    "timerMaxDelaySec": _TIMERS,
    "timerPrecisionMs": _TIMERS,
    "transientStorePoolSize": _POOL,
    "waitTimeMillsInHeartbeatQueue": _FAST_FAILURE,
    "waitTimeMillsInPullQueue": _FAST_FAILURE,
    "waitTimeMillsInSendQueue": _FAST_FAILURE,
    "waitTimeMillsInTransactionQueue": _FAST_FAILURE,
    "warmMapedFileEnable": _MAPPED,
}

_NOT_BUILT: Final = "not supported yet"


def _true(value: Any) -> bool:
    return value is True


def _is_other_than(wanted: Any) -> Callable[[Any], bool]:
    return lambda value: value != wanted


# Key -> (whether a value is refused, what to do instead).
REFUSED: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "aclEnable": (_true, f"access control is {_NOT_BUILT}; remove the key"),
    "brokerId": (_is_other_than(0), f"slaves are {_NOT_BUILT}; use 0, the master"),
    "brokerRole": (
        _is_other_than("ASYNC_MASTER"),
        f"replication is {_NOT_BUILT}; use ASYNC_MASTER",
    ),
    "clusterTest": (_true, f"it is {_NOT_BUILT}; remove the key"),
    "duplicationEnable": (_true, f"it is {_NOT_BUILT}; remove the key"),
    "enableLmq": (_true, f"light queues are {_NOT_BUILT}; remove the key"),
    "enableMultiDispatch": (_true, f"light queues are {_NOT_BUILT}; remove the key"),
    "fetchNamesrvAddrByAddressServer": (_true, f"it is {_NOT_BUILT}; name them in namesrvAddr"),
    "storePathCommitLog": (
        lambda value: value is not None and "," in str(value),
        f"several folders are {_NOT_BUILT}; name one",
    ),
}
