"""What the connector needs of its surroundings, and errors that say what to install.

Nothing here imports pyspark or pyarrow before it is asked to.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Mapping
from typing import Final

from skylarkmq.client.errors import RocketMQError

OLDEST_PYSPARK: Final = (4, 2)
OLDEST_PYARROW: Final = (18, 0)
INSTALL: Final = "pip install 'skylarkmq[spark]'"


class MissingRequirementError(RocketMQError):
    """A package or program that Spark needs is not there, or is too old."""


def check_packages() -> None:
    """Refuse a pyspark or pyarrow that is missing or too old. Loads both.

    Raises:
        MissingRequirementError: which one, what was found, what to install.
    """
    _check("pyspark", OLDEST_PYSPARK, "earlier releases know no read limit in a Python data source")
    _check("pyarrow", OLDEST_PYARROW, "Spark moves the messages as Arrow batches")


def check_bash(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a system without bash: all of Spark's launchers are bash scripts.

    Raises:
        MissingRequirementError: bash is not on PATH.
    """
    if shutil.which("bash", path=environment.get("PATH", os.defpath)) is None:
        raise MissingRequirementError(
            "Spark's launchers are bash scripts, and there is no bash on PATH",
            hint="Install it: apt-get install bash, apk add bash",
        )


def _check(package: str, oldest: tuple[int, int], why: str) -> None:
    wanted = ".".join(map(str, oldest))
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise MissingRequirementError(
            f"the package {package} can not be loaded ({error})", hint=f"Install it: {INSTALL}"
        ) from error
    version = str(getattr(module, "__version__", ""))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < oldest:
        raise MissingRequirementError(
            f"{package} {version or '(no version)'} is too old: {wanted} or later is needed, {why}",
            hint=f"Update it: {INSTALL}",
        )
