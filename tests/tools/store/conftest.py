"""A store of every kind of message, written once by our real store, and copies of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tools.store.support import Sample, write_sample


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """The store itself: look only."""
    return write_sample(tmp_path_factory.mktemp("pristine") / "store")


@pytest.fixture
def sample(pristine: Sample, tmp_path: Path) -> Sample:
    """A copy of its own for each test."""
    root = tmp_path / "store"
    shutil.copytree(pristine.root, root)
    return Sample(root, pristine.messages)
