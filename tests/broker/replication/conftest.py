"""A real etcd, shared by the tests that do it no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.etcd_process import EtcdProcess, start_etcd


@pytest.fixture(scope="session")
def shared_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    [member] = start_etcd(tmp_path_factory.mktemp("etcd"))
    yield member
    member.kill()
