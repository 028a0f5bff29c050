"""Which worker runs what: a file in one worker, and what loads large libraries in a single one."""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER: Final = "tests/spark/"


class Scheduling(LoadFileScheduling):
    """Gives the tests of the Spark connector that start no JVM to one worker.

    What pyarrow, pandas, polars, DuckDB and deltalake take, it alone takes. It is the largest
    share, so it is the first that is given out, and the other workers do the rest beside it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)


class TogetherPlugin:
    """Makes xdist use `Scheduling` where no JVM is started: that takes more time than memory."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling | None:
        return Scheduling(config, log) if "not spark" in config.option.markexpr else None
