"""Builds the compiled kernel where a compiler is there; `pyproject.toml` says everything else."""

from pathlib import Path

from setuptools import Extension, setup

KERNEL = Path("skylarkmq/kernel")

setup(
    ext_modules=[
        Extension(
            "skylarkmq.kernel.compiled",
            [str(KERNEL / "compiled.pyx")],
            depends=sorted(map(str, KERNEL.glob("*.pxi"))),
            optional=True,
        )
    ]
)
