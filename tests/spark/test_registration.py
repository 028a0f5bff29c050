"""How Spark finds the formats by itself, and what happens where it can not load them."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource

import pyspark_skylarkmq
import pyspark_skylarkmq_commitlog
from skylarkmq.common.extras import how_to_install
from skylarkmq.spark import requirements, session

PACKAGES = {"skylarkmq": pyspark_skylarkmq, "skylarkmq-commitlog": pyspark_skylarkmq_commitlog}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_what_spark_looks_for(name: str) -> None:
    source = PACKAGES[name].DefaultSource
    assert issubclass(source, DataSource)
    assert source.name() == name
    assert source is session.load_source(name)
    assert pickle.loads(cloudpickle.dumps(source)) is source


def test_spark_s_way_of_looking_finds_them() -> None:
    found = {info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")}
    assert {package.__name__ for package in PACKAGES.values()} <= found


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_nothing_else(name: str) -> None:
    assert not hasattr(PACKAGES[name], "Default")


@pytest.mark.parametrize("package", ["pyarrow", "pyspark"])
def test_too_old_a_package_is_refused_when_used_only(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module(package), "__version__", "4.1.4")
    with pytest.raises(requirements.MissingRequirementError) as caught:
        session.load_source("skylarkmq")
    assert f"{package} 4.1.4 is too old" in str(caught.value)
    assert how_to_install("spark") in str(caught.value)
    source = pickle.loads(cloudpickle.dumps(pyspark_skylarkmq.DefaultSource))
    assert source.name() == "skylarkmq"
    with pytest.raises(RuntimeError, match=f"cannot be used: {package} 4.1.4 is too old"):
        source({})


def test_without_pyarrow_others_find_their_sources() -> None:
    """In a process of its own, which can not load pyarrow."""
    code = """
import sys
sys.modules["pyarrow"] = None
import pyspark_skylarkmq
source = pyspark_skylarkmq.DefaultSource
try:
    source({})
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the package pyarrow cannot be loaded" in done.stdout


def test_the_connector_loads_neither_library() -> None:
    code = (
        "import sys, skylarkmq.client, skylarkmq.spark, pyspark_skylarkmq\n"
        "print(sorted({'pyspark', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_sdk_does_not_load_the_connector() -> None:
    code = "import sys, skylarkmq.client\nprint('skylarkmq.spark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_package_that_can_not_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    with pytest.raises(requirements.MissingRequirementError, match=r"pyarrow \(no version\)"):
        requirements.check_packages()
