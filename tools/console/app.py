"""The application: its routes, and what lives as long as it does."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from skylarkmq import __version__
from skylarkmq.client.clock import SystemClock
from skylarkmq.common.clock import Clock
from skylarkmq.tools.console import visit as visiting
from skylarkmq.tools.console.access import Accesses, forget_in_time
from skylarkmq.tools.console.change import Planner, changing
from skylarkmq.tools.console.guard import Guard
from skylarkmq.tools.console.pages import (
    account,
    accounts,
    brokers,
    clients,
    dead_letters,
    groups,
    messages,
    overview,
    pending,
    tail,
    topics,
)
from skylarkmq.tools.console.sessions import Sessions
from skylarkmq.tools.console.settings import Settings
from skylarkmq.tools.console.visit import Console, Visit, Work, handled

ASSETS: Final = ("console.css", "console.js", "theme.js", "icon.svg")
READS: Final[tuple[tuple[str, Work], ...]] = (
    ("/", overview.overview),
    ("/search", overview.search),
    ("/topics", topics.topics),
    ("/topics/{topic}", topics.topic),
    ("/groups", groups.groups),
    ("/groups/{group}", groups.group),
    ("/groups/{group}/reset", groups.reset),
    ("/groups/{group}/members/{client_id:path}", groups.member),
    ("/clients", clients.clients),
    ("/messages", messages.messages),
    ("/messages/export", messages.export),
    ("/messages/view", messages.message),
    ("/trace", messages.trace),
    ("/dead-letters", dead_letters.dead_letters),
    ("/dead-letters/{group}", dead_letters.letters_of),
    ("/pending", pending.pending),
    ("/tail", tail.tail),
    ("/accounts", accounts.accounts),
    ("/brokers/{broker}", brokers.broker),
)
CHANGES: Final[tuple[tuple[str, Work | None, Planner], ...]] = (
    ("/topics/new", topics.new_topic, topics.create_topic),
    ("/topics/{topic}/edit", topics.edit_topic, topics.update_topic),
    ("/topics/{topic}/delete", None, topics.delete_topic),
    ("/groups/new", groups.new_group, groups.create_group),
    ("/groups/{group}/edit", groups.edit_group, groups.update_group),
    ("/groups/{group}/delete", None, groups.delete_group),
    ("/groups/{group}/reset", groups.reset, groups.do_reset),
    ("/messages/send", messages.new_message, messages.send),
    ("/dead-letters/{group}/resend", None, dead_letters.resend),
    ("/pending/cancel", None, pending.cancel),
    ("/brokers/{broker}/forget", None, brokers.forget),
    ("/brokers/{broker}/settings/{key}", brokers.edit_setting, brokers.set_setting),
)
"""Paths with the page of their form, or None where the question is the first page; with `--write`
alone."""


def make_app(settings: Settings, make_clock: Callable[[], Clock] | None = None) -> Starlette:
    """Return the application.

    Args:
        make_clock: called in the loop that serves; default: the system's clock.
    """
    pages = visiting.templates(_state_of_assets())

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncGenerator[None]:
        clock = make_clock() if make_clock else SystemClock(asyncio.get_running_loop())
        accesses = Accesses(settings, clock)
        sessions = Sessions(clock)
        app.state.console = Console(settings, clock, accesses, sessions, pages, __version__)
        forgetting = asyncio.create_task(forget_in_time(sessions, accesses, clock))
        try:
            yield
        finally:
            forgetting.cancel()
            await asyncio.gather(forgetting, return_exceptions=True)
            await accesses.stop()

    return Starlette(
        routes=_routes(settings),
        lifespan=life,
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={404: _no_page, 405: _no_page},
    )


def _routes(settings: Settings) -> list[BaseRoute]:
    static = StaticFiles(packages=[("skylarkmq.tools.console", "static")])
    changes: list[BaseRoute] = []
    for path, form, planner in CHANGES if settings.is_writing else ():
        work = changing(planner, form)
        changes.append(Route(path, handled(form or work), methods=["GET"]))
        changes.append(Route(path, handled(work, is_change=True), methods=["POST"]))
    return [
        *changes,  # first, as `new` is no topic
        *(Route(path, handled(work), methods=["GET"]) for path, work in READS),
        Route("/tail/events", handled(tail.Tails().stream), methods=["GET"]),
        Route("/login", handled(account.login, is_public=True), methods=["GET"]),
        Route("/login", handled(account.do_login, is_public=True), methods=["POST"]),
        Route("/logout", handled(account.logout, is_public=True), methods=["POST"]),
        Mount("/static", static, name="static"),
    ]


async def _no_page(request: Request, _: Exception) -> Response:
    async def say(visit: Visit) -> Response:
        failure = visiting.Failure(
            404,
            "There is no such page",
            f"{request.method} {request.url.path[:200]} is none of this console's pages.",
            "Go on from the menu.",
        )
        return visit.page("error.html", 404, failure=failure)

    answer: Response = await handled(say, is_public=True)(request)
    return answer


def _state_of_assets() -> str:
    """Return a short name of what the static files hold now."""
    folder, digest = files("skylarkmq.tools.console") / "static", hashlib.sha256()
    for name in ASSETS:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:12]
