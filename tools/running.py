"""How a command that talks to a cluster runs: its loop, its end by a signal, its exit code.

Exit codes: 0 ok, 1 failed, 2 wrong use, 3 not found, 4 unreachable, 5 refused, 6 incomplete: some
brokers did not answer, and what is known of the others is printed. And 128 + its number for a
signal that ended the command before its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

import click

from skylarkmq.client.errors import (
    AUTH_HINT,
    AlreadyExists,
    BrokerError,
    ConnectionFailed,
    MessageTooLarge,
    NotFound,
    NotSupported,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    TopicNotExist,
)
from skylarkmq.protocol.errors import WireError
from skylarkmq.tools.output import visible

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
UNREACHABLE: Final = 4
REFUSED: Final = 5
INCOMPLETE: Final = 6
SIGNALLED: Final = 128
"""Plus the number of the signal that ended a command before its end, as shells have it."""
COMMAND_OF: Final = {
    "create_topic": "skylarkmq topic create",
    "create_group": "skylarkmq group create",
    "update_group": "skylarkmq group update",
    "update_topic": "skylarkmq topic update",
}
ACCOUNT_CURE: Final = (
    "--access-key and --secret-key, or the context, name the account; its rights stand in each "
    "broker's plain_acl.yml"
)
"""In place of the SDK's."""
NO_TOPIC: Final = "`skylarkmq topic list` shows the topics, `skylarkmq topic create` makes one"
_CALL: Final = re.compile(rf"\b({'|'.join(COMMAND_OF)})\b")
EXIT_CODES: Final = (
    "Exit codes: 0 ok, 1 failed, 2 wrong use, 3 not found, 4 unreachable, 5 refused, 6 incomplete "
    "(some brokers did not answer)."
)


def run(
    work: Callable[[], Coroutine[Any, Any, int | None]],
    *,
    asked: str = "",
    open_ended: bool = False,
) -> NoReturn:
    """Run a command's work and exit with the code that it returns; None is 0.

    SIGINT and SIGTERM end the work cleanly, with 128 + the signal's number. Errors become one line
    on standard error and their exit code.

    Args:
        asked: which name servers were asked, and who named them; told when none can be reached.
        open_ended: the command has no end of its own, so that a signal is its good end: 0.
    """
    try:
        code = asyncio.run(_until_signal(work, open_ended=open_ended))
    except (MessageTooLarge, ValueError, WireError) as error:
        code = fail(error, USAGE)
    except RocketMQError as error:
        code = fail(error, exit_code(error))
        if code == UNREACHABLE and asked:
            click.echo(f"hint: asked {asked}", err=True)
        if code == NOT_FOUND and isinstance(error, RouteNotFound):
            click.echo(f"hint: {NO_TOPIC}", err=True)
    except BrokenPipeError:
        # The reader of the output has left; nothing may be flushed into the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


async def _until_signal(
    work: Callable[[], Coroutine[Any, Any, int | None]], *, open_ended: bool
) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work())
    ended_by = 0

    def interrupt(number: int) -> None:
        nonlocal ended_by
        ended_by = number
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # not on Windows
            loop.add_signal_handler(number, interrupt, number)
    try:
        return await task or 0
    except asyncio.CancelledError:
        if ended_by:
            return 0 if open_ended else SIGNALLED + ended_by
        raise


def exit_code(error: RocketMQError) -> int:
    """Return the exit code that tells a script what kind of error this is."""
    if isinstance(error, RouteNotFound):
        missing = error.reason in ("topic_missing", "auto_create_off")
        return NOT_FOUND if missing else UNREACHABLE
    if isinstance(error, TopicNotExist | NotFound):
        return NOT_FOUND
    if isinstance(error, ConnectionFailed | RequestTimeout):
        return UNREACHABLE
    if isinstance(error, BrokerError | NotSupported | AlreadyExists):
        return REFUSED
    return FAILED


def fail(error: Exception | str, code: int) -> int:
    """Print an error and return the exit code; cures that name a call name the command.

    A server may have written the text: its control characters do not reach the terminal.
    """
    click.echo(f"error: {error_text(error)}", err=True)
    return code


def error_text(error: Exception | str) -> str:
    """Return an error in one line, with commands and options where its cure names calls.

    Names that a cause has stay as they are; a text alone is a cure.
    """
    text = str(error)
    cause = error.text if isinstance(error, RocketMQError) else text
    if isinstance(error, str):
        cause = ""
    cure = _CALL.sub(lambda call: f"`{COMMAND_OF[call[0]]}`", text.removeprefix(cause))
    return visible((cause + cure).replace(AUTH_HINT, ACCOUNT_CURE))


def removed(group: click.Group, name: str, instead: str) -> None:
    """Let a command that `group` had before refuse, with what to use instead."""

    def refuse(**_: object) -> NoReturn:
        sys.exit(fail(f"{group.name} {name} was removed: {instead}", USAGE))

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    settings = {"ignore_unknown_options": True}
    group.add_command(
        click.Command(name, params=[words], callback=refuse, hidden=True, context_settings=settings)
    )
