"""The writes that one `foreachBatch` has made, so that a second one with the same keys is refused.

A write inside `foreachBatch` makes its rows' keys of the query, the batch, the topic and option
`writeName`, because a batch that is repeated must give its rows their keys again. Two writes of a
batch to one topic therefore need names: without them, different messages would get one message id.

    <Spark's folder of the application>/skylarkmq-writes/<query id>/<attempt>-<topic and name>

is an empty file for each write of a batch to a topic that was committed; the attempt is Spark's
number for this run of the batch. The driver reads the folder when a write is planned, every task
gets what was found and refuses to send, and the commit refuses as well, for two writes at once.
A repeated batch has another attempt, and a restarted driver another folder: both write as before.

Source: apache/spark@v4.3.0 sql/core/.../execution/SQLExecution.scala (EXECUTION_ROOT_ID_KEY)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.spark.option_reading import OptionError

_FOLDER: Final = "skylarkmq-writes"


class BatchWrite(NamedTuple):
    """One write to one topic in one attempt at a batch of a query."""

    query_id: str
    attempt: str
    topic: str
    name: str
    """Option `writeName`; empty without it."""

    @property
    def path(self) -> str:
        """Its file below the folder."""
        digest = hashlib.blake2b(f"{self.topic}\0{self.name}".encode(), digest_size=16)
        return f"{self.query_id}/{self.attempt}-{digest.hexdigest()}"

    def refusal(self) -> OptionError:
        """Return the error for a second such write."""
        named = f"option writeName {self.name!r}" if self.name else "no option writeName"
        return OptionError(
            f"a second write of this batch to topic {self.topic[:128]}, with {named}: its messages "
            "would get the message ids of the first one. Give each write inside foreachBatch a "
            "writeName of its own, or idempotencyColumns",
            "writeName",
        )


def committed(root: Path | None) -> frozenset[str]:
    """Return the paths of all writes that the driver knows; driver."""
    folder = None if root is None else root / _FOLDER
    if folder is None or not folder.is_dir():
        return frozenset()
    return frozenset(f"{path.parent.name}/{path.name}" for path in folder.glob("*/*"))


def commit(root: Path | None, writes: Iterable[BatchWrite]) -> None:
    """Note the writes, and forget those of other attempts of their query; driver.

    Raises:
        OptionError: one of them is there already.
    """
    if root is None:
        return
    for write in writes:
        path = root / _FOLDER / write.path
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            raise write.refusal() from None
        for old in path.parent.iterdir():
            if not old.name.startswith(f"{write.attempt}-"):
                old.unlink(missing_ok=True)
