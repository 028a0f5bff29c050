"""How jobs run, as far as that needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.spark.jobs.common import JobSettings, UsageError
from skylarkmq.spark.jobs.running import end_of, open_session
from tests.spark.support.stream_place import A0


def test_where_a_batch_ends_is_in_spark_s_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    text = 'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"v":1,"o":{"T":{"a":{"0":17}}}}'
    (tmp_path / "offsets/3").write_text(text)
    assert end_of(tmp_path, 3) == {A0: 17}


@pytest.mark.parametrize("master", ["sc://127.0.0.1:1", None])
def test_a_connect_server_is_refused(master: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with (
        pytest.raises(UsageError, match="a job needs a Spark whose driver runs here"),
        open_session("job", JobSettings(master=master)),
    ):
        pass
