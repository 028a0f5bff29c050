"""How constructors take their settings: known names, right types, durations.

`takes` gives a constructor the keywords of a class of settings, `checked` checks those that it has
itself. Both tell a name that is unknown with the nearest one, and a value of the wrong type with
the setting's name, for the class that the user sees. Annotations say which types are right: those
of the types in `_KINDS` are checked, the others are the class's own business.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import update_wrapper
from math import isnan
from numbers import Integral, Real
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

P = ParamSpec("P")
C = TypeVar("C")
S = TypeVar("S")

Duration = float | timedelta
"""Seconds, or a timedelta."""

_KINDS: Final[dict[str, tuple[str, type | tuple[type, ...]]]] = {
    "str": ("text", str),
    "int": ("a whole number", Integral),
    "float": ("a number", Real),
    "bool": ("True or False", bool),
    "duration": ("seconds or a timedelta", (Real, timedelta)),
    "None": ("None", type(None)),
    "Sequence": ("a list", Collection),
    "Collection": ("a list", Collection),
}


def seconds_of(duration: Duration) -> float:
    """Return a duration in seconds.

    Raises:
        TypeError: neither seconds nor a timedelta.
        ValueError: NaN.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    _check_type("a duration", "float | timedelta", duration)
    return duration


def seconds_or_none(duration: Duration | None) -> float | None:
    """Return a duration in seconds, if there is one."""
    return duration if duration is None else seconds_of(duration)


def require_positive(name: str, value: float) -> None:
    """Raise a ValueError for a setting that is not above 0, NaN among them."""
    if not value > 0:
        raise ValueError(f"{name} is above 0, not {value}")


def require_count(name: str, value: int) -> None:
    """Raise a TypeError or a ValueError for a setting that is no whole number of 1 or more."""
    _check_type(name, "int", value)
    if value < 1:
        raise ValueError(f"{name} is 1 or more, not {value}")


def takes(
    config: Callable[P, C],
) -> Callable[[Callable[[S, C], None]], Callable[Concatenate[S, P], None]]:
    """Return a decorator for an `__init__`: it has the arguments of `config`, and gets one made.

    Raises:
        TypeError: (when called) an argument that is not known, with the nearest one, that is
            missing, or of the wrong type.
    """
    signature = inspect.signature(config)
    known = signature.parameters

    def decorate(function: Callable[[S, C], None]) -> Callable[Concatenate[S, P], None]:
        def taken(self: S, /, *arguments: P.args, **settings: P.kwargs) -> None:
            _check(type(self).__name__, signature, arguments, settings)
            function(self, config(*arguments, **settings))

        own = next(iter(inspect.signature(function).parameters.values()))
        shown: Any = update_wrapper(taken, function)
        shown.__signature__ = signature.replace(parameters=[own, *known.values()])
        shown.__annotations__ = {each.name: each.annotation for each in known.values()}
        shown.__no_type_check__ = True  # get_type_hints: these names are not those of the function
        shown.settings = config
        return taken

    return decorate


def checked(function: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Check the arguments of an `__init__`, which has its keywords itself; raises as `takes`."""
    its = inspect.signature(function)
    signature = its.replace(parameters=[*its.parameters.values()][1:])

    def taken(self: S, /, *arguments: P.args, **settings: P.kwargs) -> None:
        _check(type(self).__name__, signature, arguments, settings)
        function(self, *arguments, **settings)

    shown: Any = update_wrapper(taken, function)
    return shown  # type: ignore[no-any-return]


def _check(
    owner: str,
    signature: inspect.Signature,
    arguments: Collection[Any],
    settings: Mapping[str, Any],
) -> None:
    known = signature.parameters
    for given in settings:
        if given not in known:
            near = "".join(f"; {one}?" for one in get_close_matches(given, known, 1))
            raise TypeError(f"{owner} has no setting {given!r}{near}")
    try:
        bound = signature.bind(*arguments, **settings)
    except TypeError as error:
        raise TypeError(f"{owner}: {error}") from None
    for name, value in bound.arguments.items():
        if known[name].kind is not inspect.Parameter.VAR_POSITIONAL:
            _check_type(f"{owner}: {name}", str(known[name].annotation), value)


def _check_type(name: str, annotation: str, value: object) -> None:
    """Raise a TypeError for a value of another type, a ValueError for NaN."""
    plain = re.sub(r"\[.*\]", "", annotation).replace("float | timedelta", "duration")
    kinds = plain.split(" | ")
    if isinstance(value, float) and isnan(value):
        raise ValueError(f"{name} is a number, not NaN")
    if _KINDS.keys() >= set(kinds) and not any(_is_a(kind, value) for kind in kinds):
        wanted = " or ".join(_KINDS[kind][0] for kind in kinds)
        raise TypeError(f"{name} is {wanted}, not {value!r}")


def _is_a(kind: str, value: object) -> bool:
    if isinstance(value, bool | str):  # no number, and no list of letters
        return kind == type(value).__name__
    return isinstance(value, _KINDS[kind][1])
