"""Who is logged in: sessions on the server, named by a signed cookie.

A cookie holds a random id and a signature over it, so ids that this process has not made are not
looked up. Keys of accounts stay here; no page has them. Who is not logged in has an id too, which
costs nothing here: the token of its forms is made from the id.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.config import Credentials
from skylarkmq.common.clock import Clock

IDLE_MAX_S: Final = 8 * 3600.0
AGE_MAX_S: Final = 24 * 3600.0
SESSIONS_MAX: Final = 200
FAILURES_MAX: Final = 10
FAILURES_WINDOW_S: Final = 60.0
ID_SIZE: Final = 24


@dataclass(slots=True)
class Session:
    """One browser. Without an account it has only a name."""

    key: str
    credentials: Credentials | None = field(default=None, repr=False)
    made_s: float = 0.0
    used_s: float = 0.0

    @property
    def account(self) -> str:
        """The access key; empty: nobody is logged in."""
        return self.credentials.access_key if self.credentials else ""


class Sessions:
    """The sessions of one console. Loop thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._by_key: OrderedDict[str, Session] = OrderedDict()
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None: this process has not made it, or it is over."""
        key, _, signature = (cookie or "").partition(".")
        if not key or not hmac.compare_digest(signature.encode(), self._sign("id", key).encode()):
            return None
        found = self._by_key.get(key)
        if found is None:
            return Session(key)
        if self._is_over(found):
            del self._by_key[key]
            return None
        found.used_s = self._clock.monotonic()
        self._by_key.move_to_end(key)
        return found

    def new(self, credentials: Credentials | None = None) -> Session:
        """Return a session with a name that nobody else has; with an account it is kept."""
        now_s = self._clock.monotonic()
        session = Session(secrets.token_urlsafe(ID_SIZE), credentials, now_s, now_s)
        if credentials is not None:
            self._by_key[session.key] = session
            if len(self._by_key) > SESSIONS_MAX:
                self._by_key.popitem(last=False)
        return session

    def end(self, session: Session) -> None:
        """Forget a session."""
        self._by_key.pop(session.key, None)

    def forget_ended(self) -> None:
        """Forget the sessions whose time is over, and so the keys of their accounts."""
        for key in [key for key, each in self._by_key.items() if self._is_over(each)]:
            del self._by_key[key]

    def uses(self, credentials: Credentials) -> bool:
        """Return whether a session of an account is left."""
        return any(
            each.credentials == credentials and not self._is_over(each)
            for each in self._by_key.values()
        )

    def cookie(self, session: Session) -> str:
        """Return what the browser keeps."""
        return f"{session.key}.{self._sign('id', session.key)}"

    def token(self, session: Session) -> str:
        """Return what each form of the session carries."""
        return self._sign("form", session.key)

    def is_token(self, session: Session, token: str) -> bool:
        """Return whether a form is of this session."""
        return hmac.compare_digest(token.encode(), self.token(session).encode())

    # Logins that failed

    @property
    def is_guessed_at(self) -> bool:
        """Whether too many logins failed within a minute."""
        failures = self._failures
        if len(failures) < FAILURES_MAX:
            return False
        return self._clock.monotonic() - failures[0] < FAILURES_WINDOW_S

    def trying(self) -> float:
        """Count a login as failed until `succeeded`: many at the same time are guesses, too."""
        now_s = self._clock.monotonic()
        self._failures.append(now_s)
        return now_s

    def succeeded(self, trial: float) -> None:
        """Take back what `trying` counted."""
        with suppress(ValueError):
            self._failures.remove(trial)

    def _is_over(self, session: Session) -> bool:
        now_s = self._clock.monotonic()
        return now_s - session.used_s > IDLE_MAX_S or now_s - session.made_s > AGE_MAX_S

    def _sign(self, purpose: str, key: str) -> str:
        text = f"{purpose}:{key}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()
