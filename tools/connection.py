"""What the commands that talk to a cluster share: options, the connection, confirmation.

@topic.command("list")
@online
def list_topics(session: Session) -> None:
    async def work(admin: Admin) -> None:
        session.output.rows([{"topic": name} for name in await admin.list_topics()])

    session.look(work)
"""

from __future__ import annotations

import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click.shell_completion import CompletionItem

from skylarkmq.client.admin import Admin, Unanswered
from skylarkmq.client.config import DEFAULT_NAMESRV_ADDR, Credentials
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.instance import Client
from skylarkmq.client.namespace import Namespace
from skylarkmq.tools.local.contexts import Context, load_contexts
from skylarkmq.tools.output import FORMATS, Output
from skylarkmq.tools.running import INCOMPLETE, NOT_FOUND, exit_code, fail, run

Command = Callable[..., Any]
TIMEOUT_S: Final = 5.0
ASKED_AT_ONCE: Final = 8
"""Topics or groups of a cluster that one look asks for at the same time."""


@dataclass(frozen=True, slots=True)
class Session:
    """The cluster that a command talks to, and how it answers."""

    namesrv: str
    origin: str
    """Who named the name servers: `--namesrv`, `NAMESRV_ADDR`, `context NAME`, `the default`."""
    credentials: Credentials | None
    tls: ssl.SSLContext | None
    namespace: str | None
    timeout: float
    """Seconds for each request."""
    output: Output

    def wrap(self, name: str) -> str:
        """Return a topic or group as brokers know it: with the namespace, if there is one."""
        return Namespace(self.namespace).wrap(name)

    def client(self) -> Client:
        """Return a client of this cluster, not started."""
        return Client(
            self.namesrv,
            ssl=self.tls,
            credentials=self.credentials,
            namespace=self.namespace,
            start_timeout=0,
            request_timeout=self.timeout,
        )

    def looking(self, client: Client) -> Admin:
        """Return an administrator that only looks, not started.

        It does without brokers that do not answer, and notes them for the output.
        """
        return Admin(client=client, timeout=self.timeout, unanswered=self.output.unanswered)

    def without(self, broker: str, address: str, error: RocketMQError) -> None:
        """Note and name a broker that a reader does without."""
        self.output.unanswered[broker] = Unanswered(broker, address, error)
        self.output.tell_unanswered()

    def run(
        self,
        work: Callable[[Client], Coroutine[Any, Any, int | None]],
        *,
        open_ended: bool = False,
    ) -> NoReturn:
        """Do `work` with a client and exit with the code that it returns, as `running.run`.

        Where brokers did not answer, they are named, and "ok" and "not found" become "incomplete".
        """

        async def connected() -> int | None:
            async with self.client() as client:
                try:
                    code = await work(client) or 0
                except RocketMQError as error:
                    if not self.output.unanswered or exit_code(error) != NOT_FOUND:
                        self.output.tell_unanswered(str(error))
                        raise
                    code = fail(error, NOT_FOUND)
                finally:
                    self.output.tell_unanswered()
                return INCOMPLETE if self.output.unanswered and code in (0, NOT_FOUND) else code

        run(connected, asked=f"{self.namesrv} ({self.origin})", open_ended=open_ended)

    def look(
        self,
        work: Callable[[Admin], Coroutine[Any, Any, int | None]],
        *,
        open_ended: bool = False,
    ) -> NoReturn:
        """Do `work`, which changes nothing, with an administrator; see `looking`."""

        async def with_admin(client: Client) -> int | None:
            async with self.looking(client) as admin:
                return await work(admin)

        self.run(with_admin, open_ended=open_ended)

    def administer(
        self,
        work: Callable[[Admin], Coroutine[Any, Any, int | None]],
        *,
        open_ended: bool = False,
    ) -> NoReturn:
        """Do `work` with an administrator and exit with the code that it returns, as `run`."""

        async def with_admin(client: Client) -> int | None:
            async with Admin(client=client, timeout=self.timeout) as admin:
                return await work(admin)

        self.run(with_admin, open_ended=open_ended)


@dataclass(frozen=True, slots=True)
class Change:
    """Whether a command may change what it was asked to: `--dry-run`, `--yes`, or a question."""

    dry_run: bool
    yes: bool

    def allowed(self, what: str, *, harmless: bool = False) -> bool:
        """Return whether to go on with `what`, such as "delete the topic orders on 2 brokers".

        With --dry-run the answer is no, and what would be done is printed. Without --yes a terminal
        is asked, unless it is harmless: it takes nothing away and stops nothing.

        Raises:
            click.UsageError: without --yes, and there is no terminal to ask.
            click.Abort: the person said no.
        """
        if self.dry_run:
            click.echo(f"would {what}", err=True)
            return False
        if self.yes or harmless:
            return True
        if not sys.stdin.isatty():
            raise click.UsageError(f"to {what} needs --yes where nobody can be asked")
        with _interruptible():
            click.confirm(f"{what[0].upper()}{what[1:]}?", abort=True, err=True)
        return True


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C end a question: the loop, which handles it else, waits for the answer, too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def changes(command: Command) -> Command:
    """Add --dry-run and --yes; the command gets `change`."""

    def with_change(dry_run: bool, yes: bool, **options: Any) -> None:
        command(change=Change(dry_run, yes), **options)

    update_wrapper(with_change, command)
    options = (
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        click.option("--yes", is_flag=True, help="Do not ask."),
    )
    return _add(options, with_change)


def connected(command: Command) -> Command:
    """Add the options of the connection; the command gets `session`, which prints JSON lines."""

    def with_session(**options: Any) -> None:
        connection = {name: options.pop(name) for name in _CONNECTION}
        command(session=_session(TIMEOUT_S, Output("ndjson"), **connection), **options)

    return _add(_CONNECTION_OPTIONS, update_wrapper(with_session, command))


def online(command: Command) -> Command:
    """Add the options of the connection, --timeout and --output; the command gets `session`."""

    def with_session(output: str | None, timeout: float, **options: Any) -> None:
        connection = {name: options.pop(name) for name in _CONNECTION}
        command(session=_session(timeout, Output(output), **connection), **options)

    return _add((*_ANSWER_OPTIONS, *_CONNECTION_OPTIONS), update_wrapper(with_session, command))


@dataclass(frozen=True, slots=True)
class Where:
    """The brokers that a command is meant for; `cluster` and `brokers` as Admin takes them."""

    cluster: str | None
    brokers: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.brokers is not None:
            return f"broker {', '.join(self.brokers)}"
        return "all brokers" if self.cluster is None else f"cluster {self.cluster}"


def targeted(command: Command) -> Command:
    """Add --cluster and --broker; the command gets `where`."""

    def with_where(cluster: str | None, brokers: tuple[str, ...], **options: Any) -> None:
        if cluster is not None and brokers:
            raise click.UsageError("--cluster and --broker do not go together")
        command(where=Where(cluster, brokers or None), **options)

    options = (
        click.option("--cluster", metavar="NAME", help="On all brokers of this cluster."),
        click.option(
            "--broker", "brokers", multiple=True, metavar="NAME",
            help="On this broker, by name or host:port; repeatable.",
        ),
    )  # fmt: skip
    return _add(options, update_wrapper(with_where, command))


def _add(options: Iterable[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed([*options]):
        command = option(command)
    return command


def _saved(_ctx: click.Context, _option: click.Parameter, begin: str) -> list[CompletionItem]:
    """Return the saved contexts that begin so, for shell completion."""
    names = sorted(load_contexts().by_name)
    return [CompletionItem(name) for name in names if name.startswith(begin)]


_FILE: Final = click.Path(dir_okay=False)
_CONNECTION_OPTIONS: Final = (
    click.option(
        "--namesrv", metavar="HOST:PORT",
        help="Name servers, separated by semicolons; else those of the context, $NAMESRV_ADDR, "
        f"{DEFAULT_NAMESRV_ADDR}.",
    ),
    click.option(
        "--context", envvar="SKYLARKMQ_CONTEXT", show_envvar=True, metavar="NAME",
        help="A cluster saved by `skylarkmq context add`.", shell_complete=_saved,
    ),
    click.option(
        "--access-key", envvar="SKYLARKMQ_ACCESS_KEY", show_envvar=True,
        help="Account of the brokers' access control.",
    ),
    click.option(
        "--secret-key", envvar="SKYLARKMQ_SECRET_KEY", show_envvar=True,
        help="Secret of the account.",
    ),
    click.option("--namespace", metavar="NAME", help="Tenant of topics and groups."),
    click.option("--tls", is_flag=True, help="Use TLS; --tls-ca and --tls-cert imply it."),
    click.option("--tls-ca", type=_FILE, help="Issuers to trust instead of the system's, PEM."),
    click.option("--tls-cert", type=_FILE, help="This client's certificate and key, PEM."),
)  # fmt: skip
_ANSWER_OPTIONS: Final = (
    click.option(
        "-o", "--output", type=click.Choice(FORMATS),
        help="Default: table on a terminal, json elsewhere.",
    ),
    click.option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S,
        show_default=True, help="Seconds for each request.",
    ),
)  # fmt: skip
_CONNECTION: Final = (
    "namesrv", "context", "access_key", "secret_key", "namespace", "tls", "tls_ca", "tls_cert",
)  # fmt: skip


def _session(timeout: float, output: Output, /, context: str | None, **given: Any) -> Session:
    contexts = load_contexts()
    named = contexts.named(context) if context else None
    from_environment = os.environ.get("NAMESRV_ADDR")
    current = Context()
    if named is None and contexts.current and not given["namesrv"] and not from_environment:
        context, current = contexts.current, contexts.named(contexts.current)
    saved = named or current
    named_by = (
        (given["namesrv"], "--namesrv"),
        (saved.namesrv, f"context {context}"),
        (from_environment, "NAMESRV_ADDR"),
        (DEFAULT_NAMESRV_ADDR, "the default; --namesrv names others"),
    )
    namesrv, origin = next((servers, who) for servers, who in named_by if servers)
    account = given["access_key"], given["secret_key"]
    access_key, secret_key = account if any(account) else (saved.access_key, saved.secret_key)
    if (access_key is None) != (secret_key is None):
        raise click.UsageError("--access-key and --secret-key go together")
    ca, certificate = given["tls_ca"] or saved.tls_ca, given["tls_cert"] or saved.tls_cert
    wants_tls = given["tls"] or saved.tls or ca or certificate
    return Session(
        namesrv=str(namesrv),
        origin=origin,
        credentials=Credentials(access_key, secret_key) if access_key and secret_key else None,
        tls=tls_context(ca, certificate) if wants_tls else None,
        namespace=given["namespace"] or saved.namespace,
        timeout=timeout,
        output=output,
    )


def tls_context(ca: str | Path | None, certificate: str | Path | None) -> ssl.SSLContext:
    """Return a context that trusts `ca`, or the system's issuers, and shows `certificate`.

    Raises:
        click.BadParameter: a file that cannot be used.
    """
    parameter, path = "--tls-ca", ca
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            parameter, path = "--tls-cert", certificate
            context.load_cert_chain(certificate, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        why = "no PEM that can be used" if isinstance(error, ssl.SSLError) else error.strerror
        raise click.BadParameter(f"{path}: {why}", param_hint=parameter) from error
    return context
