"""The pytest plug-in: `skylarkmq_broker` and its kin.

    async def test_an_order_is_billed(skylarkmq_broker):
        async with skylarkmq_broker.client() as client, Producer(client=client) as producer: ...

    fixture                    scope      gives
    skylarkmq_broker           function   RunningBroker; its methods are awaited
    skylarkmq_broker_sync      function   SyncBroker: the same broker without await
    skylarkmq_broker_session   session    RunningBroker; one for the run, or for a worker of xdist
    skylarkmq_settings         session    keys of all these brokers: define it anew to change them
    skylarkmq_accounts         session    their accounts, None for no access control: the same

The marker `skylarkmq` gives the arguments of `run_broker` to the brokers of one test:
`@pytest.mark.skylarkmq(settings={"flushDiskType": "SYNC_FLUSH"})`.

Each broker has a thread and a loop of its own, so the fixtures do not care which asynchronous
plug-in runs the test, or whether any does. When a test fails, what its broker holds is part of the
report.

Nothing but pytest is imported here: every pytest run loads this module.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from skylarkmq.embedded import Settings
    from skylarkmq.testing.accounts import Account
    from skylarkmq.testing.broker import RunningBroker
    from skylarkmq.testing.threaded import SyncBroker

MARKER: Final = "skylarkmq"
FIXTURES: Final = ("skylarkmq_broker", "skylarkmq_broker_session")
REPORT_TITLE: Final = "skylarkmq broker"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(profile, store, port, clock, settings, accounts): arguments of run_broker",
    )


@pytest.fixture(scope="session")
def skylarkmq_settings() -> Settings:
    """Keys of a broker.conf for all brokers of the fixtures; none unless it is defined anew."""
    return {}


@pytest.fixture(scope="session")
def skylarkmq_accounts() -> Sequence[Account] | None:
    """Accounts of all brokers of the fixtures; no access control unless it is defined anew."""
    return None


@pytest.fixture
def skylarkmq_broker(
    request: pytest.FixtureRequest,
    skylarkmq_settings: Settings,
    skylarkmq_accounts: Sequence[Account] | None,
) -> Iterator[RunningBroker]:
    """A broker of this test's own, with its name server; its methods are awaited."""
    from skylarkmq.testing import run_broker_in_thread

    marker = request.node.get_closest_marker(MARKER)
    arguments: dict[str, Any] = {"accounts": skylarkmq_accounts}
    arguments |= {} if marker is None else marker.kwargs
    arguments["settings"] = {**skylarkmq_settings, **arguments.get("settings", {})}
    with run_broker_in_thread(*(marker.args if marker is not None else ()), **arguments) as broker:
        yield broker


@pytest.fixture
def skylarkmq_broker_sync(skylarkmq_broker: RunningBroker) -> SyncBroker:
    """The broker of this test without await; the same one as `skylarkmq_broker`."""
    from skylarkmq.testing import SyncBroker

    return SyncBroker(skylarkmq_broker)


@pytest.fixture(scope="session")
def skylarkmq_broker_session(
    skylarkmq_settings: Settings, skylarkmq_accounts: Sequence[Account] | None
) -> Iterator[RunningBroker]:
    """One broker for all tests of the run; each test takes topics and groups of its own."""
    from skylarkmq.testing import run_broker_in_thread

    with run_broker_in_thread(settings=skylarkmq_settings, accounts=skylarkmq_accounts) as broker:
        yield broker


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell in the report of a failed test what its broker holds."""
    report = yield
    if report.when == "call" and report.failed:
        values: dict[str, Any] = getattr(item, "funcargs", {})
        for name in FIXTURES:
            if name in values:
                report.sections.append((REPORT_TITLE, _dump(values[name])))
    return report


def _dump(broker: RunningBroker) -> str:
    from skylarkmq.testing import SyncBroker

    try:
        return SyncBroker(broker).dump()
    except Exception as error:  # the test's own failure is what counts
        return f"it cannot tell what it holds: {type(error).__name__}: {error}"
