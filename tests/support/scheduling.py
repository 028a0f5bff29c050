"""Which worker runs what: a file in one, and what loads large libraries in one of its own."""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TOGETHER: Final = "tests/spark/"
SESSION: Final = "the session of Spark"
OWN_JVM: Final = (
    "_avro_page.py", "_cluster.py", "_connect.py", "_demo.py", "_kill.py", "_session.py"
)  # fmt: skip
"""How files end whose tests start JVMs of their own."""


class Scheduling(LoadFileScheduling):
    """Gives the tests of the Spark connector that start no JVM to one worker, and it nothing else.

    What pyarrow, pandas and deltalake take, it alone takes. It is the largest share, so it is the
    first that is given out; the other workers do the rest beside it.
    """

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else super()._split_scope(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        if TOGETHER not in self.assigned_work.get(node, {}) or len(self.nodes) == 1:
            super()._reschedule(node)
        elif not node.shutting_down:
            node.shutdown()  # once it has done what it was given


class SparkScheduling(LoadFileScheduling):
    """Gives the tests that share a session of Spark to one worker: each session takes a JVM."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return file if file.endswith(OWN_JVM) else SESSION


class TogetherPlugin:
    """Makes xdist use `Scheduling`, and `SparkScheduling` for the tests that start a JVM."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Any
    ) -> LoadFileScheduling | None:
        if "not spark" in config.option.markexpr:
            return Scheduling(config, log)
        return SparkScheduling(config, log) if "spark" in config.option.markexpr else None
