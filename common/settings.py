"""How constructors take their settings: known names, right types, durations.

`takes` gives a constructor the keywords of a class of settings, `checked` checks those that it has
itself, `names_checked` those of a dataclass. All tell a name that is unknown with the nearest one,
or with the class whose setting it is; the first two also a value of the wrong type with the
setting's name, for the class that the user sees. Annotations say which types are right: those of
the types in `_KINDS` are checked, the others are the class's own business.
"""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import update_wrapper
from math import isnan
from numbers import Integral, Real
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
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

_owners: Final = defaultdict[str, list[str]](list)
"""The public classes that have a setting of a name."""
_NEAR: Final = 0.6
_AS_GOOD_AS_EQUAL: Final = 0.9


def seconds_of(duration: Duration, name: str = "a duration") -> float:
    """Return a duration in seconds.

    Args:
        name: of the setting, for the error.

    Raises:
        TypeError: neither seconds nor a timedelta.
        ValueError: NaN.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    _check_type(name, "float | timedelta", duration)
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
        TypeError: (when called) an argument that is not known, with the nearest one or with the
            class whose it is; that is missing, or of the wrong type.
    """
    signature = inspect.signature(config)
    known = signature.parameters

    def decorate(function: Callable[[S, C], None]) -> Callable[Concatenate[S, P], None]:
        _note(function, known)

        def taken(self: S, /, *arguments: P.args, **settings: P.kwargs) -> None:
            _check(type(self), signature, arguments, settings)
            function(self, config(*arguments, **settings))

        own = next(iter(inspect.signature(function).parameters.values()))
        shown: Any = update_wrapper(taken, function)
        shown.__signature__ = signature.replace(parameters=[own, *known.values()])
        shown.__annotations__ = {each.name: each.annotation for each in known.values()}
        shown.__no_type_check__ = True  # get_type_hints: these names are not those of the function
        shown.settings = config
        return taken

    return decorate


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function or an `__init__`; raises as `takes`."""
    signature = inspect.signature(function)
    known = [*signature.parameters]
    is_method = known[0] == "self"
    if is_method:
        signature = signature.replace(parameters=[*signature.parameters.values()][1:])
        _note(function, signature.parameters)

    def taken(*arguments: P.args, **settings: P.kwargs) -> R:
        owner = type(arguments[0]) if is_method else function
        _check(owner, signature, arguments[is_method:], settings)
        return function(*arguments, **settings)

    return update_wrapper(taken, function)


def names_checked(kind: type[C]) -> type[C]:
    """Check the names of a dataclass's keywords, as Python does from 3.13 on; raises as `takes`."""
    known, made = inspect.signature(kind).parameters, kind.__init__

    def taken(self: C, /, *arguments: Any, **settings: Any) -> None:
        require_names(kind.__name__, settings, known)
        made(self, *arguments, **settings)

    changed: Any = kind
    changed.__init__ = update_wrapper(taken, made)
    return kind


def require_names(
    owner: str, given: Iterable[str], known: Iterable[str], made: object = None
) -> None:
    """Raise a TypeError for a name that is not known, with the nearest one or with whose it is.

    Args:
        made: the class whose methods may have the name.
    """
    names = [*known]
    for name in given:
        if name in names:
            continue
        others = [other for other in _owners.get(name, ()) if other != owner]
        others += _method_with(made, name)
        near = [one for one in names if one.endswith(f"_{name}")] or get_close_matches(
            name, names, 1, _AS_GOOD_AS_EQUAL if others else _NEAR
        )
        hint = f"; {' or '.join(near)}?" if near else ""
        if others and not near:
            hint = f"; {name} is a setting of {', '.join(others)}"
        raise TypeError(f"{owner} has no setting {name!r}{hint}")


def _method_with(made: object, name: str) -> list[str]:
    """Return the public method that has the argument, as Class.method; none if several have it."""
    found = [
        function.__qualname__
        for method, function in inspect.getmembers(made, inspect.isfunction)
        if not method.startswith("_") and name in inspect.signature(function).parameters
    ]
    return found if len(found) == 1 else []


def _note(function: Callable[..., object], known: Iterable[str]) -> None:
    """Note which class has the settings of an `__init__`; of a base, the class that is public."""
    owner = function.__qualname__.partition(".")[0].removesuffix("Base")
    for name in known:
        _owners[name].append(owner)


def _check(
    called: Callable[..., Any],
    signature: inspect.Signature,
    arguments: Collection[Any],
    settings: Mapping[str, Any],
) -> None:
    known, owner = signature.parameters, called.__name__
    require_names(owner, settings, known, called)
    for name in settings:
        if known[name].kind is inspect.Parameter.VAR_POSITIONAL:
            raise TypeError(f"{owner}: {name} come first, without their name")
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
