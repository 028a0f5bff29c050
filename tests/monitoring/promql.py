"""Whether a query can have an answer: its metrics and labels, compared with series that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import promql_parser as promql

from tests.monitoring.rig import Series

Expression = Any  # promql_parser's nodes have no base that says what they hold
VARIABLE: Final = re.compile(r'"\$\w+"')


def plain(query: str, *, interval: str = "5m") -> str:
    """Return a board's query as Prometheus takes it, with all of each variable chosen."""
    return VARIABLE.sub('".*"', query.replace("$__rate_interval", interval))


def selectors(node: Expression) -> Iterator[promql.VectorSelector]:
    """Yield all vector selectors below a node."""
    if isinstance(node, promql.VectorSelector):
        yield node
    elif isinstance(node, promql.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql.Call):
        for each in node.args:
            yield from selectors(each)
    elif isinstance(node, promql.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif hasattr(node, "expr"):
        yield from selectors(node.expr)


def matches(matcher: Any, value: str) -> bool:
    """Return whether a label's value is one that a matcher takes; no label is an empty one."""
    operation = str(matcher.op)
    if operation in ("MatchOp.Equal", "MatchOp.NotEqual"):
        return (value == matcher.value) is (operation == "MatchOp.Equal")
    return bool(re.fullmatch(matcher.value, value)) is (operation == "MatchOp.Re")


class Checker:
    """Works out which labels a query's answer has, and what it asks for in vain.

    Attributes:
        faults: what was asked for in vain.
    """

    def __init__(self, series: Iterable[Series]) -> None:
        self.faults: list[str] = []
        self._by_name: dict[str, list[Series]] = {}
        for each in series:
            self._by_name.setdefault(each.name, []).append(each)

    def check(self, query: str) -> list[str]:
        """Return the faults of a query."""
        self.faults = []
        try:
            self.labels(promql.parse(query))
        except ValueError as error:
            self.faults.append(f"cannot be parsed: {error}")
        return self.faults

    def labels(self, node: Expression) -> set[str]:
        """Return the labels of an answer; note the faults."""
        if isinstance(node, promql.VectorSelector):
            return self._selected(node)
        if isinstance(node, promql.MatrixSelector):
            return self._selected(node.vector_selector)
        if isinstance(node, promql.Call):
            return self._called(node)
        if isinstance(node, promql.AggregateExpr):
            return self._aggregated(node)
        if isinstance(node, promql.BinaryExpr):
            return self._joined(node)
        return self.labels(node.expr) if hasattr(node, "expr") else set()

    def _selected(self, node: promql.VectorSelector) -> set[str]:
        named = self._by_name.get(node.name or "", [])
        known = {label for each in named for label in each.labels}
        matchers = node.matchers.matchers
        for matcher in matchers:
            if named and matcher.name not in known:
                self.faults.append(f"{node.name} has no label {matcher.name}")
        chosen = [
            each
            for each in named
            if all(matches(matcher, each.labels.get(matcher.name, "")) for matcher in matchers)
        ]
        if not chosen:
            self.faults.append(f"no series: {node}")
        return {label for each in chosen for label in each.labels}

    def _called(self, node: promql.Call) -> set[str]:
        together: set[str] = set()
        for each in node.args:
            together |= self.labels(each)
        if node.func.name == "histogram_quantile":
            if "le" not in together:
                self.faults.append(f"no label le: {node}")
            together.discard("le")
        return together

    def _aggregated(self, node: promql.AggregateExpr) -> set[str]:
        inner = self.labels(node.expr)
        if node.modifier is None:
            return inner if str(node.op) in ("topk", "bottomk") else set()
        asked = set(node.modifier.labels)
        self._miss(asked, inner, node)
        is_by = node.modifier.type == promql.AggModifierType.By
        return asked if is_by else inner - asked

    def _joined(self, node: promql.BinaryExpr) -> set[str]:
        left, right = self.labels(node.lhs), self.labels(node.rhs)
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None:
            self._miss(set(matching.labels), left, node)
            self._miss(set(matching.labels), right, node)
        if str(node.op) == "or" or not any(selectors(node.lhs)):  # a number has no labels
            return left | right
        return left

    def _miss(self, asked: set[str], there: set[str], node: Expression) -> None:
        self.faults += [f"no label {label}: {node}" for label in sorted(asked - there)]
