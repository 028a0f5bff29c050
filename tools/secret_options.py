"""Where a command takes a secret from: a question, standard input, or a variable.

Never from its arguments, which every user of a machine can list. No command prints a secret.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import update_wrapper
from typing import Any, Final

import click

from skylarkmq.tools.connection import Command

MASK: Final = "********"
SECRET_SIZE_MAX: Final = 65_536
SECRET_WORDS: Final = ("password", "secret")


def with_secret(command: Command) -> Command:
    """Add --ask-secret, --secret-stdin and --secret-env; the command gets `secret`, or None."""

    def with_it(ask_secret: bool, secret_stdin: bool, secret_env: str | None, **rest: Any) -> None:
        if sum((ask_secret, secret_stdin, secret_env is not None)) > 1:
            raise click.UsageError("give one of --ask-secret, --secret-stdin and --secret-env")
        secret: str | None = None
        if ask_secret:
            secret = click.prompt("Secret", hide_input=True, confirmation_prompt=True, err=True)
        elif secret_stdin:
            secret = sys.stdin.read(SECRET_SIZE_MAX).rstrip("\r\n")
        elif secret_env is not None:
            secret = os.environ.get(secret_env)
        given = ask_secret or secret_stdin or secret_env is not None
        if given and not secret:
            where = f"the variable {secret_env}" if secret_env else "standard input"
            raise click.UsageError(f"{where} has no secret")
        command(secret=secret, **rest)

    update_wrapper(with_it, command)
    options = (
        click.option("--ask-secret", is_flag=True, help="Ask for the secret."),
        click.option("--secret-stdin", is_flag=True, help="Read the secret from standard input."),
        click.option("--secret-env", metavar="VARIABLE", help="Take the secret from a variable."),
    )
    for option in reversed(options):
        with_it = option(with_it)
    return with_it


def masked(key: str, value: str) -> str:
    """Return a setting's value, or a mask in the place of a secret."""
    is_secret = any(word in key.lower() for word in SECRET_WORDS)
    return MASK if is_secret and value else value


def pairs_of(texts: Iterable[str], what: str) -> dict[str, str]:
    """Return texts such as `key=value` by key.

    Raises:
        click.UsageError: one has another form.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise click.UsageError(f"{text!r} is no {what}")
        found[key.strip()] = value.strip()
    return found
