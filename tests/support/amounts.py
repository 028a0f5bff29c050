"""How much of a thing a test tries: little in `make test`, its full amount in `make test-slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
from hypothesis import settings

EXAMPLES: Final = "examples"  # the marker, and the name of the parameter
_SETTINGS: Final = "_hypothesis_internal_use_settings"  # where Hypothesis looks at each call


def slow(*values: object, id: str | None = None) -> Any:
    """Return a parameter that takes above half a CPU second."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def sample(values: Sequence[Any], few: int) -> list[Any]:
    """Return all values as parameters, those after the first few as slow ones."""
    return [*values[:few], *map(slow, values[few:])]


def check_power(seen: Mapping[str, int], least: Mapping[str, int], runs: float, per: int) -> None:
    """Fail when `runs` seeds showed less than their share of what `per` seeds show at least.

    Fewer seeds than that differ more: of them half the share is asked for, and nothing of what is
    rare.
    """
    part = runs / per if runs >= per else runs / per / 2
    shares = {name: int(wanted * part) for name, wanted in least.items()}
    short = {name: (seen[name], share) for name, share in shares.items() if seen[name] < share}
    assert not short, f"too little was seen: {short} of {seen}"


def examples(few: int, many: int) -> Callable[[Any], Any]:
    """Try a property on few examples, and as a slow test on many. It stands above `given`."""
    return getattr(pytest.mark, EXAMPLES)(few, many)


class Amounts:
    """The plugin that makes two tests of a property with `examples`."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        mark = metafunc.definition.get_closest_marker(EXAMPLES)
        if mark:
            few, many = mark.args
            metafunc.fixturenames.append(EXAMPLES)
            metafunc.parametrize(EXAMPLES, [few, slow(many)])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        callspec: Any = getattr(item, "callspec", None)
        if item.get_closest_marker(EXAMPLES) and callspec:
            test: Any = item.obj  # type: ignore[attr-defined]
            chosen = settings(getattr(test, _SETTINGS), max_examples=callspec.params[EXAMPLES])
            setattr(test, _SETTINGS, chosen)
        return (yield)
