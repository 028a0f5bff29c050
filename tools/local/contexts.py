"""Saved contexts: the clusters that the command line knows by a name.

They lie in `~/.config/skylarkmq/contexts.yaml` (below XDG_CONFIG_HOME where that is set), readable
by their owner alone, because they may hold keys of access control:

    current: production
    contexts:
      production: {namesrv: "ns1:9876;ns2:9876", access_key: admin, secret_key: "..."}
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import click
import yaml

from skylarkmq.tools.local.private_file import private_file


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster, and who the command line is there. None: nothing is said."""

    namesrv: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    namespace: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_cert: str | None = None

    def to_mapping(self) -> dict[str, object]:
        """Return what is said, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value not in (None, False)}


@dataclass(slots=True)
class Contexts:
    """All saved contexts, and which one is used when none is named."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict[str, Context])

    def named(self, name: str) -> Context:
        """Return a context.

        Raises:
            click.BadParameter: nothing is saved under this name.
        """
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise click.BadParameter(
                f"no context {name!r} is saved (saved: {known}); `skylarkmq context add` saves one",
                param_hint="--context",
            )
        return self.by_name[name]


def contexts_file() -> Path:
    """Return where the contexts lie."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "skylarkmq" / "contexts.yaml"


def load_contexts() -> Contexts:
    """Return what is saved; empty when there is no file.

    Raises:
        click.ClickException: the file cannot be read, or is not of this form.
    """
    path = contexts_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: {error}") from error
    try:
        found: Any = yaml.safe_load(text) or {}
        saved = cast("dict[str, dict[str, Any]]", found.get("contexts") or {})
        by_name = {name: Context(**values) for name, values in saved.items()}
        return Contexts(found.get("current"), by_name)
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise click.ClickException(
            f"{path} is not a file of contexts ({error}); correct it, or remove it and save the "
            "contexts again with `skylarkmq context add`"
        ) from error


def save_contexts(contexts: Contexts) -> None:
    """Write the file anew, whole or not at all.

    Raises:
        click.ClickException: it cannot be written.
    """
    path = contexts_file()
    document = {
        "current": contexts.current,
        "contexts": {name: each.to_mapping() for name, each in contexts.by_name.items()},
    }
    beside = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with private_file(beside) as file:
            yaml.safe_dump(document, file, sort_keys=False, allow_unicode=True)
        beside.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path}: {error}") from error
