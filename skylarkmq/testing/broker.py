"""`run_broker` and what it hands out: a broker with its name server in this process.

clocks    the broker's own time (`advance`) runs ahead of the clients' and of what it measures
          clients by: connections, memberships, queue locks and held pulls take real seconds,
          so a jump over hours ends no connection. Delays, retries, timers, checks of
          transactions, retention and statistics follow `advance`.
threads   each coroutine method may be awaited from any event loop; it runs in the broker's own.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, TypeVar

from skylarkmq.broker.config.config_file import Profile
from skylarkmq.broker.controller import BrokerController
from skylarkmq.common.clock import Clock
from skylarkmq.common.settings import checked
from skylarkmq.embedded import Settings
from skylarkmq.protocol.message import MessageExt
from skylarkmq.testing import inspection
from skylarkmq.testing.accounts import Account, write_accounts
from skylarkmq.testing.clock import OwnTimers, VirtualClock
from skylarkmq.testing.disk import TestFiles
from skylarkmq.testing.faults import Faults
from skylarkmq.testing.folder import StoreFolder
from skylarkmq.testing.profiles import broker_config, profile_row
from skylarkmq.testing.wire import WireFaults

if TYPE_CHECKING:
    from skylarkmq.client import Client, Credentials

P = ParamSpec("P")
T = TypeVar("T")

HOST: Final = "127.0.0.1"
QUEUE_COUNT: Final = 4
SETTLE_MAX_S: Final = 60.0
"""How long `advance` waits while nothing of what is due gets stored; real seconds, for a busy
machine has its pauses."""
REFUSED_MAX_S: Final = 2.0
"""The same while a fault keeps the broker from storing anything."""
POLL_S: Final = 0.005
"""How often a wait looks again; real seconds."""
BIND_ATTEMPTS: Final = 20
BIND_PAUSE_S: Final = 0.05


def at_home(
    method: Callable[Concatenate[RunningBroker, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[RunningBroker, P], Coroutine[Any, Any, T]]:
    """Run a coroutine method in the broker's loop, whichever loop awaits it."""

    @wraps(method)
    async def run(self: RunningBroker, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = method(self, *args, **kwargs)
        if asyncio.get_running_loop() is self.home:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.home))

    return run


class RunningBroker:
    """A broker that runs. Made by `run_broker` and by the fixtures.

    Attributes:
        namesrv_addr: `host:port` for clients; the same after a restart.
        faults: what can be made to go wrong.
        root: the folder of the store.
        home: the event loop that it runs in.
    """

    def __init__(
        self,
        profile: Profile,
        root: Path,
        settings: Settings,
        clock: Clock | None,
        port: int,
        accounts: Sequence[Account],
    ) -> None:
        self.namesrv_addr = ""
        self.root = root
        self.home = asyncio.get_running_loop()
        self._profile: Profile = profile
        self._settings = settings
        self._accounts = {account.access_key: account for account in accounts}
        self._ports = (0, port)
        self._clock: Clock = clock or VirtualClock()
        # The broker's timers end with it. Clients live in real time, so they are measured by it.
        self._timers: list[OwnTimers] = []
        if isinstance(self._clock, VirtualClock):
            self._timers = [OwnTimers(self._clock), OwnTimers(VirtualClock())]
        self._wire = WireFaults()
        self._files = self._new_files()
        self._controller: BrokerController | None = None
        self.faults = Faults(self.home, self._wire, self.disk, self._judge_disk)

    # Life

    async def start(self) -> None:
        """Serve; `run_broker` does it. In the loop of the broker."""
        config = broker_config(self._profile, self.root, self._settings, self._ports)
        clock, peer_clock = self._timers or (self._clock, None)
        controller = BrokerController(
            config,
            with_namesrv=True,
            files=self._files,
            clock=clock,
            peer_clock=peer_clock,
            metrics="none",
            connect=self._wire.connect,
        )
        await controller.start()
        self._controller = controller
        assert controller.namesrv_address is not None and controller.advertised is not None
        self._ports = (controller.advertised.port, controller.namesrv_address[1])
        self.namesrv_addr = f"{HOST}:{self._ports[1]}"

    async def stop(self) -> None:
        """End all faults, serve no more, and write everything; `run_broker` does it."""
        self.faults.clear()
        controller, self._controller = self._controller, None
        if controller is not None:
            await controller.stop()
        self._forget_timers()

    @at_home
    async def restart(self, *, kill: bool = False) -> None:
        """Stop, and start again on the same store and the same ports; clients connect again.

        Faults end. The clock goes on where it stood.

        Args:
            kill: end as `kill -9` does: connections are cut, and what only lies in the broker's
                memory, as offsets of the last seconds, is lost. Messages that were acknowledged
                are in the log.

        Raises:
            ValueError: `kill`, of a broker with a clock that is not a VirtualClock.
            StoreError: the store cannot be recovered.
        """
        if kill:
            await self._kill()
        else:
            await self.stop()
        self._files = self._new_files()
        for _ in range(BIND_ATTEMPTS):
            try:
                await self.start()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                await asyncio.sleep(BIND_PAUSE_S)  # a client of somebody took the port for itself
            else:
                return
        await self.start()

    async def _kill(self) -> None:
        if not isinstance(self._clock, VirtualClock):
            raise ValueError("kill=True needs a VirtualClock: the dead broker's timers must end")
        controller = self.controller
        self._files.is_dead = True
        self.faults.clear()  # a sync that hangs comes back, and fails
        self._controller = None
        self._forget_timers()
        await controller.kill()
        self._forget_timers()

    def _forget_timers(self) -> None:
        for timers in self._timers:
            timers.forget_timers()

    def _new_files(self) -> TestFiles:
        row = profile_row(self._profile)
        return TestFiles(syncs=row.syncs, sparse_log=not row.syncs)

    @property
    def controller(self) -> BrokerController:
        """The broker's inside, for what this class does not show; for its loop's thread alone.

        Raises:
            RuntimeError: the broker does not run now.
        """
        if self._controller is None:
            raise RuntimeError("the broker does not run: it was stopped, or did not start again")
        return self._controller

    def disk(self) -> TestFiles:
        """Return the files of the broker's present life."""
        return self._files

    def _judge_disk(self) -> None:
        self.controller.parts.store.cleaning.disk.judge_now()

    # Clients and what they left

    def client(self, account: str | None = None, **settings: Any) -> Client:
        """Return a client of this broker, not started; `settings` are those of `Client`.

        It does not wait for a broker that a test has stopped: `start_timeout` is 0.

        Args:
            account: the access key of the account that it signs with, of those that the broker was
                given; None: it signs nothing, unless `settings` have `credentials`.

        Raises:
            ValueError: the broker was not given such an account.
        """
        from skylarkmq.client import Client

        if account is not None:
            settings["credentials"] = self.credentials(account)
        settings.setdefault("start_timeout", 0)
        return Client(self.namesrv_addr, **settings)

    def credentials(self, account: str) -> Credentials:
        """Return the keys of an account that the broker was given, by its access key.

        Raises:
            ValueError: there is none.
        """
        from skylarkmq.client import Credentials

        known = self._accounts.get(account)
        if known is None:
            names = ", ".join(self._accounts) or "none"
            raise ValueError(f"the broker was not given an account {account!r}, but {names}")
        return Credentials(known.access_key, known.secret_key)

    @at_home
    async def create_topic(
        self, topic: str, queues: int = QUEUE_COUNT, *, order: bool = False
    ) -> None:
        """Make a topic, or give it another number of queues; routes have it on return.

        Raises:
            RemoteProtocolError: the name cannot be a topic's.
        """
        await inspection.create_topic(self.controller, topic, queues, order)

    @at_home
    async def messages(self, topic: str, queue_id: int | None = None) -> list[MessageExt]:
        """Return what a topic, or one of its queues, holds, in the order of the log.

        Messages that wait for their time are not there yet. Bodies are inflated.
        """
        return await inspection.messages(self.controller, topic, queue_id)

    @at_home
    async def lag(self, group: str) -> int | None:
        """Return how many messages a group has not committed; None for an unknown group.

        Counted are the topics that it subscribes to or ever committed, its retry topic among them;
        a queue without a committed offset counts whole. Messages that wait for a retry's time are
        in no queue of the group's yet.
        """
        if not inspection.knows_group(self.controller, group):
            return None
        return sum(row.behind for row in inspection.lags(self.controller, group))

    @at_home
    async def wait_lag(
        self,
        group: str,
        lag: int = 0,
        timeout: float = 10.0,  # noqa: ASYNC109 - as everywhere in the SDK
    ) -> None:
        """Wait until a group is known and its lag is `lag` messages or fewer.

        Consumers commit at intervals (`commit_interval`, 5 s), when they are asked to, and when
        they stop; a test that waits often makes the interval short.

        Args:
            timeout: real seconds.

        Raises:
            TimeoutError: its lag is still greater; the text tells where it stands in each queue.
        """
        end_s = self.home.time() + timeout
        while (behind := await self.lag(group)) is None or behind > lag:
            if self.home.time() > end_s:
                rows = [row.text for row in inspection.lags(self.controller, group)]
                where = "; ".join(rows) or "it is unknown"
                raise TimeoutError(f"group {group} is not at lag {lag} after {timeout} s: {where}")
            await asyncio.sleep(POLL_S)

    @at_home
    async def wait_members(
        self,
        group: str,
        count: int = 1,
        timeout: float = 10.0,  # noqa: ASYNC109
    ) -> None:
        """Wait until a group of consumers or producers has so many members, as the broker knows.

        A client tells the broker of its groups a moment after they have started; before that the
        broker asks no client how a transaction ended.

        Args:
            timeout: real seconds.

        Raises:
            TimeoutError: it has another number of members.
        """
        end_s = self.home.time() + timeout
        while (found := inspection.member_count(self.controller, group)) != count:
            if self.home.time() > end_s:
                raise TimeoutError(f"group {group} has {found} members after {timeout} s")
            await asyncio.sleep(POLL_S)

    @at_home
    async def dump(self) -> str:
        """Return what the broker holds, for a human: topics, messages, groups, clients."""
        return "not running" if self._controller is None else await inspection.dump(self.controller)

    # Time

    def now(self) -> datetime:
        """Return the broker's time of day, UTC; `deliver_at` is compared with it."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    @at_home
    async def advance(self, seconds: float | timedelta) -> None:
        """Let time pass for the broker: delays, retries, timers, checks of transactions come due.

        On return all that came due is stored where consumers find it, in the order of its time;
        what cannot be stored, as with a full disk, is waited for two real seconds.
        Clients do not notice: their own waits (time-outs, intervals, back-off) are real seconds.

        Args:
            seconds: how far to move on; never back.

        Raises:
            ValueError: negative, or the broker was given a clock that cannot be moved.
        """
        seconds = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if seconds < 0:
            raise ValueError(f"time does not go back, so not by {seconds} s")
        clock = self._clock
        if not isinstance(clock, VirtualClock):
            raise ValueError(f"a {type(clock).__name__} cannot be moved: use a VirtualClock")
        target_s = clock.monotonic() + seconds
        while (due_s := clock.next_timer_s()) is not None and due_s <= target_s:
            clock.set_forward(due_s)
            await asyncio.sleep(0)
        clock.set_forward(target_s)
        await asyncio.sleep(0)
        log, since_s, seen = self.controller.parts.store.commit_log, 0.0, -1
        while self._is_delivering:
            if log.wrote_offset != seen:  # something is stored, so it is not stuck
                seen, since_s = log.wrote_offset, self.home.time()
            limit_s = REFUSED_MAX_S if self._is_kept_from_storing else SETTLE_MAX_S
            if self.home.time() > since_s + limit_s:
                break
            await asyncio.sleep(POLL_S / 5)

    @property
    def _is_delivering(self) -> bool:
        state = self.controller.parts
        services = state.schedule.is_behind or state.timer.is_behind or state.checks.is_checking
        # On a slow machine batches are written off the loop; the jump may have ended their wait.
        return services or state.store.writer.waiting > 0

    @property
    def _is_kept_from_storing(self) -> bool:
        refusal = self.controller.parts.store.refusal()
        return refusal is not None or not self.disk().may_sync.is_set()


def _absolute(path: str | Path) -> Path:
    return Path(path).absolute()


@checked
@asynccontextmanager
async def run_broker(
    profile: Profile = "test",
    store: Literal["memory"] | str | Path = "memory",
    port: int = 0,
    clock: Clock | None = None,
    *,
    settings: Settings | None = None,
    accounts: Sequence[Account] | None = None,
) -> AsyncGenerator[RunningBroker]:
    """Run a broker and its name server in the running loop until the block ends.

    Args:
        profile: "test" is small and syncs nothing; "dev" and "prod" as in `profiles.py`.
        store: "memory" is a folder on /dev/shm, or among the temporary files where there is no
            room, which goes away with the broker; else a folder that stays.
        port: of the name server, the address that clients take; 0 picks a free one.
        clock: the broker's clock; None is a VirtualClock of its own.
        settings: keys of a `broker.conf`, {"flushDiskType": "SYNC_FLUSH"}. As in RocketMQ a new
            group reads a young topic, as a test's are, from its first message, also with
            `StartFrom.LAST`: {"consumeYoungQueueFromFirst": False} ends that.
        accounts: turn access control on; only who signs as one of them is served. The methods of
            RunningBroker need none. They are written into `conf/plain_acl.yml` below the store's
            folder. None: no access control.

    Raises:
        ConfigError: a key, a value or an account that the broker does not take.
        StoreError: the folder is in use or cannot be read.
        OSError: the port is taken, or the disk failed.
    """
    folder = StoreFolder.in_memory() if store == "memory" else None
    root = _absolute(store) if folder is None else folder.path / "store"
    keys = dict(settings or {})
    if accounts is not None:
        keys |= {"aclEnable": True, "rocketmqHome": str(root)}
    broker = RunningBroker(profile, root, keys, clock, port, accounts or ())
    try:
        if accounts is not None:
            write_accounts(root, accounts)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()
    finally:
        if folder is not None:
            folder.remove()
