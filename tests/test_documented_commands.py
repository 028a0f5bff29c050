"""Every command of ours that a page shows is one that the command line knows, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from skylarkmq.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT)
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*"))
    if path.suffix in (".md", ".yaml", ".yml", ".service")
    and path.relative_to(ROOT).parts[:2] != ("docs", "reference")  # generated from the commands
)
SHOWN = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?skylarkmq ((?:[^\n\\]|\\\n)+)", re.M)
NAMED = re.compile(r"`(?:\.venv/bin/)?skylarkmq ([^`]+)`")
NAME = re.compile(r"[a-z][a-z-]*")


def blocks(text: str) -> Iterator[str]:
    """The parts of a page that a shell would be given: indented or between fences."""
    fenced = re.findall(r"^(\s*)```(?:sh|bash|console|text)?\n(.*?)^\1```", text, re.M | re.S)
    yield from (body for _, body in fenced)
    yield from re.findall(
        r"(?:^(?: {4,}|\t).*\n?)+", re.sub(r"```.*?```", "", text, flags=re.S), re.M
    )


def words_of(command: str) -> list[str]:
    """The words that the shell would hand over: up to a comment, a pipe or another command."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    ends = [words.index(end) for end in ("|", "&", "&&", ";", ">", "<", "||") if end in words]
    words = words[: min(ends, default=len(words))]
    return [word.rstrip(";") for word in words]


def parse(words: list[str]) -> None:
    """Parse as the command line would; raises what click raises. Groups have no options."""
    command, context = main, click.Context(main, info_name="skylarkmq")
    while isinstance(command, click.Group):
        if not words:
            raise click.UsageError("a group of commands, and none of them", context)
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_context(context.info_name, words, parent=context.parent)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_shown_commands_are_understood(page: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    for block in blocks(text):
        for found in SHOWN.finditer(block):
            words = words_of(found[1])
            if "..." in words or words[0].startswith("-"):
                continue
            try:
                parse(words)
            except click.ClickException as error:
                pytest.fail(f"{page}: skylarkmq {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_named_commands_exist(page: Path) -> None:
    for found in NAMED.finditer((ROOT / page).read_text("utf-8")):
        command: click.Command = main
        context = click.Context(main)
        for word in found[1].split():
            if not isinstance(command, click.Group) or not NAME.fullmatch(word):
                break
            known = command.get_command(context, word)
            assert known is not None, f"{page}: `skylarkmq {found[1]}`: no command {word}"
            command = known
