"""One request: who asks, what the form says, the page that answers, and errors as pages.

`Visit` is what each page function gets. `handled` makes a route of such a function; errors of the
cluster become a page with cause and cure.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from skylarkmq.client.admin import Admin, Unanswered
from skylarkmq.client.errors import (
    AlreadyExists,
    AuthError,
    ConnectionFailed,
    IllegalState,
    NotFound,
    NotSupported,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    TopicNotExist,
)
from skylarkmq.common.clock import Clock
from skylarkmq.tools.console import text
from skylarkmq.tools.console.access import Access, Accesses
from skylarkmq.tools.console.bodies import preview
from skylarkmq.tools.console.chart import lag_chart, small_line
from skylarkmq.tools.console.gone import Gone
from skylarkmq.tools.console.sessions import Session, Sessions
from skylarkmq.tools.console.settings import Settings
from skylarkmq.tools.output import refusal_of
from skylarkmq.tools.running import error_text

log = logging.getLogger(__name__)

FORM_SIZE_MAX: Final = 256 << 10
FIELDS_MAX: Final = 2_000
THEMES: Final = frozenset({"light", "dark"})
THEME_COOKIE: Final = "skylarkmq-theme"
DONE: Final = {
    "created": "Created.",
    "updated": "The change is in force.",
    "deleted": "Deleted.",
    "reset": "The group has been moved. Members take it over within some seconds.",
    "sent": "The message is stored.",
    "unconfirmed": "The message is stored, but the disk or a replica did not confirm it in time.",
    "cancelled": "The message was taken back.",
    "forgotten": "The console misses the broker no more.",
    "welcome": "You are logged in.",
    "bye": "You are logged out.",
}
"""What a page says after a change; the address names one of these, never a text of its own."""


class NotAllowed(Exception):
    """The console refuses, whoever asks; the texts are cause and cure."""

    def __init__(self, cause: str, cure: str, status: int = 403) -> None:
        super().__init__(cause)
        self.cause = cause
        self.cure = cure
        self.status = status


@dataclass(frozen=True)
class Console:
    """What lives as long as the console."""

    settings: Settings
    clock: Clock
    accesses: Accesses
    sessions: Sessions
    templates: Environment
    version: str

    @property
    def now(self) -> datetime:
        """The time of day, UTC."""
        return datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)


def templates(assets: str) -> Environment:
    """Return the environment of the templates.

    Args:
        assets: names the state of the static files, so that browsers fetch new ones.
    """
    found = Environment(
        loader=PackageLoader("skylarkmq.tools.console", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    found.filters.update(text.FILTERS, preview=preview)
    known: dict[str, Any] = {
        "address": text.address,
        "small_line": small_line,
        "lag_chart": lag_chart,
        "assets": assets,
    }
    found.globals.update(known)
    return found


class Visit:
    """One request, and the ways to answer it."""

    def __init__(self, request: Request, console: Console, session: Session | None) -> None:
        self.request = request
        self.console = console
        self.is_new = session is None
        self.session = session or console.sessions.new()
        self.unanswered: dict[str, Unanswered] = {}
        self.gone: list[Gone] = []
        """Brokers that were there before: what they have is not known."""
        self.outcome = "done"
        """Of a change, for the audit log."""
        self.failed: Failure | None = None
        """Why a form is shown again, with what was entered."""
        self._form: dict[str, list[str]] | None = None

    # Who asks

    @property
    def settings(self) -> Settings:
        """How the console was started."""
        return self.console.settings

    @property
    def access(self) -> Access:
        """The cluster as this visitor sees it.

        Raises:
            NotAllowed: nobody is logged in, and the console wants that.
        """
        account = self.session.credentials
        if self.settings.needs_login and account is None:
            raise LoginWanted
        return self.console.accesses.of(account or self.settings.credentials)

    async def admin(self) -> Admin:
        """Return an administrator of this visitor's account, to look with.

        It does without brokers that do not answer, or are gone; the page names them. A change is
        done with `access.admin()`, for which all have to answer.
        """
        admin = await self.access.looking(self.unanswered)
        self.gone = [one for one in self.access.history.registered.gone() if one.is_missing]
        return admin

    # What was asked

    @property
    def is_post(self) -> bool:
        """Whether a form was sent."""
        return self.request.method == "POST"

    @property
    def is_sure(self) -> bool:
        """Whether the question of a change was answered with yes."""
        return self._form is not None and self._form.get("sure") == ["yes"]

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def asked(self, name: str, default: str = "") -> str:
        """Return a value of the query, without blanks around it."""
        return self.request.query_params.get(name, default).strip()

    async def form(self) -> dict[str, list[str]]:
        """Return the fields of the form.

        Raises:
            NotAllowed: it is not of this session, or too large.
        """
        if self._form is None:
            body = bytearray()
            async for part in self.request.stream():
                body += part
                if len(body) > FORM_SIZE_MAX:
                    raise NotAllowed("The form is too large.", "Send fewer things at a time.", 413)
            try:
                fields = parse_qs(
                    body.decode("utf-8", "replace"),
                    keep_blank_values=True,
                    max_num_fields=FIELDS_MAX,
                )
            except ValueError:
                raise NotAllowed("The form has too many fields.", "Send fewer.", 413) from None
            if not self.console.sessions.is_token(self.session, fields.get("token", [""])[0]):
                raise NotAllowed(
                    "This form is not of your session, or the console has been restarted since.",
                    "Go back, load the page again, and repeat.",
                )
            self._form = fields
        return self._form

    async def fields(self) -> dict[str, list[str]]:
        """Return the fields of the form; before it is sent, those of the query."""
        if self.is_post:
            return await self.form()
        query = self.request.query_params
        return {name: query.getlist(name) for name in query}

    async def field(self, name: str, default: str = "") -> str:
        """Return one of `fields`, without blanks around it."""
        return (await self.fields()).get(name, [default])[0].strip()

    def entered(self, name: str, before: object = "") -> object:
        """Return what a field of a form has: what was there before, until it is sent."""
        return before if self._form is None else self._form.get(name, [""])[0]

    def here(self, **changes: object) -> str:
        """Return the address of this page with other values in its query."""
        query = self.request.query_params.items()
        kept = {name: value for name, value in query if name != "done"}
        return text.address(self.request.url.path, **{**kept, **changes})

    # Answers

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Return a page; that of a form that is shown again says why."""
        console, request = self.console, self.request
        status = self.failed.status if self.failed else status
        theme = request.cookies.get(THEME_COOKIE, "")
        values |= {
            "now": console.now,
            "ago": partial(text.ago, now=console.now),
            "settings": console.settings,
            "account": self.session.account,
            "token": console.sessions.token(self.session),
            "theme": theme if theme in THEMES else "",
            "path": request.url.path,
            "here": self.here,
            "entered": self.entered,
            "failed": self.failed,
            "unanswered": [*self.unanswered.values()],
            "gone": self.gone,
            "done": DONE.get(self.asked("done"), ""),
            "version": console.version,
        }
        content = console.templates.get_template(template).render(values)
        return self.with_cookie(HTMLResponse(content, status_code=status))

    def go(self, path: str, **values: object) -> Response:
        """Return the way to another page, after a change."""
        return self.with_cookie(RedirectResponse(text.address(path, **values), status_code=303))

    def with_cookie(self, response: Response) -> Response:
        """Give a browser that is new its session."""
        if self.is_new:
            response.set_cookie(
                cookie_name(self.request),
                self.console.sessions.cookie(self.session),
                httponly=True,
                samesite="strict",
                # Behind a proxy with TLS; the login's form has an Origin, a page has none.
                secure=self.request.headers.get("origin", "").startswith("https://"),
                path="/",
            )
        return response

    def shows_again(self, error: RocketMQError | ValueError) -> None:
        """Let the page say what was wrong with its form."""
        found = explained(error, self.settings)
        cure = getattr(error, "cure", "") if isinstance(error, ValueError) else found.cure
        self.failed = replace(found, cure=cure)

    def failure(self, error: Exception) -> Response:
        """Return the page of an error."""
        found = explained(error, self.settings)
        return self.page("error.html", found.status, failure=found)


class LoginWanted(NotAllowed):
    """Nobody is logged in."""

    def __init__(self) -> None:
        super().__init__("You are not logged in.", "Log in, and repeat.", 401)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error for people."""

    status: int
    title: str
    cause: str
    cure: str


Work = Callable[[Visit], Awaitable[Response]]


def cookie_name(request: Request) -> str:
    """Return the name of the session's cookie; browsers do not tell ports of a host apart."""
    return f"skylarkmq-console-{request.url.port or 80}"


def handled(work: Work, *, is_public: bool = False, is_change: bool = False) -> Any:
    """Return a route's function.

    Args:
        is_public: also for who is not logged in.
        is_change: refused without the session's token.
    """

    async def answer(request: Request) -> Response:
        console: Console = request.app.state.console
        session = console.sessions.read(request.cookies.get(cookie_name(request)))
        visit = Visit(request, console, session)
        try:
            if not is_public and console.settings.needs_login and not visit.session.account:
                return _to_login(visit)
            if is_change:
                await visit.form()
            return await work(visit)
        except LoginWanted:
            return _to_login(visit)
        except AuthError as error:
            anonymous = not visit.session.account and console.settings.credentials is None
            return _to_login(visit) if anonymous else visit.failure(error)
        except (RocketMQError, NotAllowed, ValueError) as error:
            return visit.failure(error)
        except Exception as error:
            log.exception("the page %s failed", request.url.path)
            return visit.failure(error)

    return answer


def _to_login(visit: Visit) -> Response:
    if visit.is_post:
        return visit.failure(LoginWanted())
    target = visit.request.url.path
    if visit.request.url.query:
        target = f"{target}?{visit.request.url.query}"
    return visit.go("/login", next=target if target != "/" else "")


def explained(error: Exception, settings: Settings) -> Failure:
    """Return what a page says about an error."""
    if isinstance(error, NotAllowed):
        title = "Not allowed here" if error.status == 403 else "Not possible"
        return Failure(error.status, title, error.cause, error.cure)
    if isinstance(error, RouteNotFound) and error.reason == "topic_missing":
        cause = f"No broker that is at work has a topic {error.topic}."
        cure = "Look for it in the list of topics. It may be deleted, or its broker is away."
        return Failure(404, "There is no such topic", cause, cure)
    if isinstance(error, RocketMQError):
        status, title, cure = _of_cluster(error, settings)
        cause = str(error).removesuffix(f". {error.hint}")
        if isinstance(error, AuthError):
            cause = refusal_of(str(error))
        elif error.hint and not isinstance(error, AlreadyExists):  # it names the SDK's method
            cure = error_text(error.hint)
        return Failure(status, title, cause, cure)
    if isinstance(error, ValueError):
        return Failure(400, "This cannot be used", str(error), "Go back and correct it.")
    return Failure(
        500,
        "The console has a fault",
        f"{type(error).__name__} while it made this page.",
        "The log of the console has the details; please report them.",
    )


def _of_cluster(error: RocketMQError, settings: Settings) -> tuple[int, str, str]:
    """Return status, title and a cure, for an error that has none of its own."""
    if isinstance(error, AuthError):
        return 403, "The account may not do this", "Log in with another account."
    if isinstance(error, RouteNotFound):
        return 503, "No broker serves this topic", "Start a broker."
    if isinstance(error, NotFound | TopicNotExist):
        return 404, "Not found", "It may have been deleted meanwhile."
    if isinstance(error, AlreadyExists):
        return 409, "It exists already", "Take another name."
    if isinstance(error, NotSupported):
        return 501, "This broker cannot do that", ""
    if isinstance(error, ConnectionFailed | RequestTimeout):
        status = 503 if isinstance(error, ConnectionFailed) else 504
        cure = (
            f"The console asks the name servers {settings.namesrv}. Are they and the brokers "
            "running, and do the brokers advertise an address that this machine reaches? Load the "
            "page again once they do; --namesrv names others."
        )
        return status, "The cluster does not answer", cure
    if isinstance(error, IllegalState):
        return 409, "Not possible now", "Load the page again."
    return 502, "The cluster refused", "See the log of the broker."
