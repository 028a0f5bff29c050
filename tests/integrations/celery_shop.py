"""A Celery application for the tests; its worker is a process of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import skylarkmq.integrations.kombu  # noqa: F401 - makes skylarkmq:// known

app = Celery("celery_shop", broker=f"skylarkmq://{os.environ['SHOP_NAMESRV']}", backend="rpc://")


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task(bind=True, max_retries=1)
def second_time(self: Any) -> int:
    if not self.request.retries:
        raise self.retry(countdown=0.2)
    return self.request.retries


@app.task
def fails() -> None:
    raise ValueError("no such customer")


@app.task(acks_late=True)
def once(path: str) -> str:
    """Note the process; the first one then waits to be killed."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    if len(Path(path).read_text().split()) == 1:
        time.sleep(3600)
    return "done"


@app.task(acks_late=True)
def noted(path: str, what: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{what}\n")
