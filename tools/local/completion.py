"""The command `skylarkmq completion`: the script with which a shell completes commands."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

PROGRAM: Final = "skylarkmq"
VARIABLE: Final = "_SKYLARKMQ_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and contexts.

    \b
    bash:  skylarkmq completion bash > ~/.local/share/bash-completion/completions/skylarkmq
    zsh:   skylarkmq completion zsh > ~/.zfunc/_skylarkmq
           (with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc)
    fish:  skylarkmq completion fish > ~/.config/fish/completions/skylarkmq.fish

    bash has to be 4.4 or later.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    maker = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(ShellComplete.source(maker), nl=False)  # that of bash asks bash for its version
