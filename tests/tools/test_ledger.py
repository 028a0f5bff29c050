"""The ledger of a redrive where its file cannot be read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from skylarkmq.tools.local.ledger import Ledger


@pytest.mark.parametrize("write", [False, True])
def test_a_ledger_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    path = tmp_path / "ledger"
    path.write_text("")

    def refused(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)
    with (
        pytest.raises(click.ClickException, match="Permission denied"),
        Ledger.open(path, "g", "group", "n", write=write),
    ):
        pass
