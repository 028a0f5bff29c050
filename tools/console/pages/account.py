"""Logging in and out with an account of the brokers' access control."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import Response

from skylarkmq.client.config import Credentials
from skylarkmq.client.errors import AuthError, RocketMQError
from skylarkmq.tools.console.access import check_account
from skylarkmq.tools.console.visit import NotAllowed, Visit, cookie_name, explained

WRONG_KEYS: Final = "Check both keys, or log in with an account that may look at brokers."


async def login(visit: Visit) -> Response:
    """Show the form."""
    return visit.page("login.html", target=_target(visit.asked("next")), failure=None, key="")


async def do_login(visit: Visit) -> Response:
    """Let the brokers check an account, and begin a session with it."""
    sessions, settings = visit.console.sessions, visit.settings
    await visit.form()
    target = _target(await visit.field("next"))
    key, secret = await visit.field("access_key"), (await visit.form()).get("secret_key", [""])[0]
    if sessions.is_guessed_at:
        raise NotAllowed("Too many logins failed.", "Wait a minute, and try again.", 429)
    trial = sessions.trying()
    try:
        credentials = Credentials(key, secret)
        await check_account(settings, credentials)
    except (AuthError, ValueError, RocketMQError) as error:
        failure = explained(error, settings)
        if isinstance(error, AuthError):
            failure = replace(failure, cure=WRONG_KEYS)
        if isinstance(error, ValueError):
            failure = explained(ValueError("Access key and secret key are wanted."), settings)
        return visit.page("login.html", 403, target=target, failure=failure, key=key)
    sessions.succeeded(trial)
    sessions.end(visit.session)
    visit.session = sessions.new(credentials)
    visit.is_new = True  # an id from before the login is worth nothing
    await visit.console.accesses.keep(sessions.uses)
    return visit.go(target, done="welcome" if "?" not in target else "")


async def logout(visit: Visit) -> Response:
    """End the session."""
    await visit.form()
    session, console = visit.session, visit.console
    console.sessions.end(session)
    await console.accesses.keep(console.sessions.uses)
    answer = visit.go("/login", done="bye")
    answer.delete_cookie(cookie_name(visit.request), path="/")
    return answer


def _target(text: str) -> str:
    """Return a page of this console to go to; the first one for anything else."""
    parts = urlsplit(text)
    is_ours = text.startswith("/") and not parts.netloc and not parts.scheme
    if not is_ours or text.startswith(("//", "/\\", "/login", "/logout")) or "\\" in text:
        return "/"
    return text
