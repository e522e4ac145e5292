"""MergeTree: the merge of all children, of which a change recomputes one path only."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from fedpca.summaries.merging import merge_distinct
from fedpca.summaries.rank import exchange_rank
from fedpca.summaries.summary import Summary, all_moments


class MergeTree:
    """Summaries by name, merged up a tree that is cut by a hash of the names.

    The tree, and so every bit of the merge, follows from the set of names: whoever comes, changes or leaves
    moves no other. More than fanout² children are divided by the next digit of their hash, until there are
    no more than that at a node, where they are merged level by level. The merge of a node is kept until a
    child below changes.

    Args:
        rank: directions of the model; inner nodes keep more. None for all. Moments are added up, and lose
            nothing.
        fanout: how many summaries are merged at a time.

    >>> import numpy as np
    >>> from fedpca.summaries.moments import Moments
    >>> tree = MergeTree(None, fanout=2)
    >>> for number in range(5):
    ...     tree.set(f"{number}", Moments.from_rows(np.full((3, 2), number)))
    >>> tree.set("4", None)
    >>> tree.merged().count, tree.merged().mean
    (12.0, array([1.5, 1.5]))
    """

    def __init__(self, rank: int | None, fanout: int) -> None:
        self.rank = rank
        self.fanout = fanout
        self._capacity = fanout**2
        self._root = _Node()
        self._names: set[str] = set()

    @classmethod
    def of(cls, summaries: Mapping[str, Summary], rank: int | None, fanout: int) -> Self:
        """The tree of these."""
        tree = cls(rank, fanout)
        for name, summary in summaries.items():
            tree.set(name, summary)
        return tree

    def set(self, name: str, summary: Summary | None) -> None:
        """Add or replace a summary; None removes it."""
        digits = _digits(name)
        change = (summary is not None) - (name in self._names)
        (self._names.discard if summary is None else self._names.add)(name)
        node, depth = self._root, 0
        while True:
            node.size += change
            node.merged = None
            if node.divided and node.size <= self._capacity:
                node.gather()
            if not node.divided:
                break
            digits, digit = divmod(digits, self.fanout)
            node = node.parts.setdefault(digit, _Node())
            depth += 1
        if summary is None:
            node.leaves.pop(name, None)
        else:
            node.leaves[name] = summary
        if node.size > self._capacity:
            node.divide(self.fanout, depth)

    def merged(self) -> Summary:
        """The merge of all; at least one."""
        return self._merge(self._root)

    def _merge(self, node: "_Node") -> Summary:
        if node.merged is None:
            if node.divided:
                divided = [node.parts[digit] for digit in sorted(node.parts)]
                parts = [self._merge(part) for part in divided if part.size]
            else:
                parts = [node.leaves[name] for name in sorted(node.leaves)]
            while len(parts) > self.fanout:
                starts = range(0, len(parts), self.fanout)
                parts = [self._merge_parts(parts[start : start + self.fanout]) for start in starts]
            node.merged = self._merge_parts(parts)
        return node.merged

    def others(self, names: Iterable[str]) -> Iterator[tuple[str, Summary | None]]:
        """Each of these names with the merge of all other summaries, in any order; None if there is no other.

        Down the tree, what is outside a node is merged once for all names below it: a few merges of few
        summaries per name, and not one of all.
        """
        yield from self._others(self._root, {name: _digits(name) for name in names}, None)

    def _others(
        self, node: "_Node", names: Mapping[str, int], outside: Summary | None
    ) -> Iterator[tuple[str, Summary | None]]:
        if not names:
            return
        if node.divided:
            inner = {digit: part for digit, part in sorted(node.parts.items()) if part.size}
            around = self._each_without([self._merge(part) for part in inner.values()], outside)
            for (digit, part), rest in zip(inner.items(), around, strict=True):
                below = {name: d // self.fanout for name, d in names.items() if d % self.fanout == digit}
                yield from self._others(part, below, rest)
            return
        ordered = sorted(node.leaves)
        around = self._each_without([node.leaves[name] for name in ordered], outside)
        yield from ((name, rest) for name, rest in zip(ordered, around, strict=True) if name in names)

    def _each_without(self, parts: Sequence[Summary], outside: Summary | None) -> Iterator[Summary | None]:
        """For each part the merge of all others and of what is outside.

        Of many parts the merge of those before it and of those behind it: cheaper, and truncated more often.
        """
        if len(parts) <= self.fanout:
            for place in range(len(parts)):
                others = [*parts[:place], *parts[place + 1 :], *([] if outside is None else [outside])]
                yield self._merge_parts(others) if others else None
            return
        behind: list[Summary | None] = [None]
        for part in reversed(parts[1:]):
            behind.append(self._both(part, behind[-1]))
        before = outside
        for part in parts:
            yield self._both(before, behind.pop())
            before = self._both(before, part)

    def _both(self, one: Summary | None, other: Summary | None) -> Summary | None:
        if one is None or other is None:
            return other if one is None else one
        return self._merge_parts([one, other])

    def _merge_parts(self, parts: list[Summary]) -> Summary:
        """A single one stays as it is."""
        if len(parts) == 1:
            return parts[0]
        if self.rank is None or all_moments(parts):
            return merge_distinct(parts)
        return merge_distinct(parts, exchange_rank(self.rank, parts[0].n_features))


def _digits(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest())


class _Node:
    """The children whose hashes begin alike: by name, or, if there are too many, divided by a digit."""

    def __init__(self) -> None:
        self.size = 0
        self.leaves: dict[str, Summary] = {}
        self.parts: dict[int, _Node] = {}
        self.divided = False
        self.merged: Summary | None = None

    def divide(self, fanout: int, depth: int) -> None:
        self.divided = True
        for name, summary in self.leaves.items():
            digits = _digits(name)
            part = self.parts.setdefault(digits // fanout**depth % fanout, _Node())
            part.leaves[name] = summary
            part.size += 1
        self.leaves = {}
        for part in self.parts.values():
            if part.size > fanout**2:
                part.divide(fanout, depth + 1)

    def gather(self) -> None:
        """The inverse of `divide`, of a node that has become small enough."""
        for part in self.parts.values():
            if part.divided:
                part.gather()
            self.leaves |= part.leaves
        self.parts, self.divided = {}, False
