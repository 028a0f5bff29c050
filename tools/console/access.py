"""The cluster as one account sees it: a connection, and what was seen over time.

Who logs in gets the access of the account, shared by all sessions of that account. So nobody sees
what another account was shown, but which brokers are gone: name servers told all accounts of them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from skylarkmq.client.admin import Admin, Unanswered
from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import AuthError, BrokerError, IllegalState, RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.common.clock import Clock
from skylarkmq.tools.console.checks import Checks
from skylarkmq.tools.console.gone import Registered
from skylarkmq.tools.console.history import History, keep_looking, look_for_brokers, sleep
from skylarkmq.tools.console.sessions import Sessions
from skylarkmq.tools.console.settings import Settings

log = logging.getLogger(__name__)

ACCESSES_MAX: Final = 32
FORGET_S: Final = 60.0
"""How often sessions that are over are looked for."""
LOOK_S: Final = 0.5
"""How long a page waits for who is gone; there is a look every `sample_s` seconds, too."""


class Access:
    """A connection that signs with one account, or with none. Loop thread."""

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials | None,
        clock: Clock,
        registered: Registered,
    ) -> None:
        self.history = History(registered)
        self.checks = Checks()
        self.clock = clock
        self.client: Client = settings.connect(credentials)
        self._settings = settings
        self._admin = Admin(client=self.client, timeout=settings.timeout)
        self._starting = asyncio.Lock()
        self._looking: list[asyncio.Task[None]] = []

    async def admin(self) -> Admin:
        """Return its administrator, connected.

        Raises:
            ConnectionFailed: no name server can be reached.
        """
        async with self._starting:
            if not self._looking:
                await self._admin.start()
                pause_s = self._settings.sample_s
                looks = keep_looking(self._admin, self.history, self.clock, pause_s)
                checks = self.checks.keep(self.client, self._settings, self.clock)
                self._looking = [
                    asyncio.create_task(looks, name="skylarkmq-console-history"),
                    asyncio.create_task(checks, name="skylarkmq-console-checks"),
                ]
        return self._admin

    async def looking(self, unanswered: dict[str, Unanswered]) -> Admin:
        """Return an administrator that notes which brokers do not answer, and does without them.

        Who is gone is looked for before, unless a name server lets that wait.
        """
        own = await self.admin()
        with suppress(RocketMQError, TimeoutError):  # the page itself says what is wrong then
            look = look_for_brokers(own, self.history, self.clock)
            await asyncio.wait_for(look, LOOK_S)
        admin = Admin(client=self.client, timeout=self._settings.timeout, unanswered=unanswered)
        await admin.start()
        return admin

    async def stop(self) -> None:
        """End the looks and close the connections."""
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        await self._admin.stop()
        await self.client.stop()


class Accesses:
    """All that are in use, by account. Loop thread."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._by_account: dict[Credentials | None, Access] = {}
        self._registered = Registered()

    def of(self, credentials: Credentials | None) -> Access:
        """Return the access of an account.

        Raises:
            IllegalState: too many accounts are at work.
        """
        found = self._by_account.get(credentials)
        if found is None:
            if len(self._by_account) >= ACCESSES_MAX:
                raise IllegalState(
                    f"{ACCESSES_MAX} accounts are logged in, which is the limit",
                    hint="Let one of them log out",
                )
            found = Access(self._settings, credentials, self._clock, self._registered)
            self._by_account[credentials] = found
        return found

    async def keep(self, is_used: Callable[[Credentials], bool]) -> None:
        """Stop the accesses of accounts that no session uses any more."""
        for credentials in list(self._by_account):
            if credentials is None or credentials == self._settings.credentials:
                continue  # the console's own
            if not is_used(credentials):
                await self._forget(credentials)

    async def _forget(self, credentials: Credentials | None) -> None:
        access = self._by_account.pop(credentials, None)
        if access is not None:
            await access.stop()

    async def stop(self) -> None:
        """Stop all."""
        for credentials in list(self._by_account):
            await self._forget(credentials)


async def forget_in_time(sessions: Sessions, accesses: Accesses, clock: Clock) -> None:
    """Let accounts go whose sessions are over; the root of a task."""
    while True:
        await sleep(clock, FORGET_S)
        sessions.forget_ended()
        try:
            await accesses.keep(sessions.uses)
        except Exception:
            log.exception("the connections of an account did not end cleanly")


async def check_account(settings: Settings, credentials: Credentials) -> None:
    """Let the brokers check an account.

    A broker that asks nobody for an account takes any; so one with a wrong secret has to be refused
    by at least one broker, or the login would prove nothing.

    Raises:
        AuthError: the account or its secret is wrong, or may not look at brokers.
        IllegalState: no broker checks accounts.
        RocketMQError: the cluster cannot be asked.
    """
    await _ask_all(settings, credentials)
    wrong = Credentials(credentials.access_key, secrets.token_urlsafe(24))
    try:
        await _ask_all(settings, wrong)
    except AuthError:
        return
    raise IllegalState(
        "no broker of the cluster checks accounts, so nobody can log in",
        hint="Set aclEnable on the brokers, and take this machine off their white lists; or start "
        "the console without --login",
    )


async def _ask_all(settings: Settings, credentials: Credentials) -> None:
    """Ask every broker something as this account; any refusal of the account is raised."""
    answered = 0
    away: RocketMQError | None = None
    async with (
        settings.connect(credentials) as client,
        Admin(client=client, timeout=settings.timeout) as admin,
    ):
        for broker in (await admin.cluster()).brokers:
            try:
                await admin.broker_runtime(broker.name)
                answered += 1
            except AuthError:
                raise
            except BrokerError as error:  # it has let the account in
                answered, away = answered + 1, error
            except RocketMQError as error:
                away = error
    if not answered:
        raise away or IllegalState(
            "no broker is registered with the name server, so nobody can check the account",
            hint="Start a broker; it registers within 30 seconds",
        )
