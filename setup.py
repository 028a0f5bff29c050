"""Builds the compiled kernel where a compiler is there; `pyproject.toml` says everything else."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("skylarkmq.kernel.compiled", ["skylarkmq/kernel/compiled.pyx"], optional=True)
    ]
)
