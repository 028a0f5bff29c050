"""Calls that nobody awaits: they tell so, or have done their work all the same.

A coroutine that is never awaited does nothing, and Python's warning about it is easily missed. A
call of a method with `must_await` logs an error when it is collected unawaited. What needs no wait
is done in the call itself, which returns `DONE`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Generator
from functools import partial, update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

log = logging.getLogger(__name__)


class _Call(Coroutine[Any, Any, T]):
    """One call: a coroutine that knows its name, and whether it began."""

    __slots__ = ("_begun", "_text", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], text: str) -> None:
        self._work = work
        self._text = text
        self._begun = False

    def __await__(self) -> Generator[Any, Any, T]:
        self._begun = True
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._begun = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._begun = True  # on purpose
        self._work.close()

    def __del__(self) -> None:
        if not self._begun:
            self._work.close()  # without Python's own warning
            log.error(
                "%s was not awaited and did nothing: write `await %s`", self._text, self._text
            )


class _Done(Coroutine[Any, Any, None]):
    """What a call returns that has done its work; it can be awaited any number of times."""

    __slots__ = ()

    __await__: Any = partial(iter, ())  # a method of Python's takes longer

    def send(self, value: Any) -> Any:
        raise StopIteration

    def throw(self, *error: Any) -> Any:
        raise error[0]

    def close(self) -> None:
        pass


DONE: Final = _Done()


def must_await(
    variable: str,
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, T]]],
    Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
]:
    """Return a decorator for a method that has to be awaited.

    Args:
        variable: what the log calls the method's object, as `message`.
    """

    def decorate(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        text = f"{variable}.{method.__name__}(...)"

        def call(self: S, /, *arguments: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
            return _Call(method(self, *arguments, **options), text)

        return update_wrapper(call, method)

    return decorate
