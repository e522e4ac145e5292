"""The child on whose account summaries do not merge."""

from collections.abc import Callable, Mapping
from typing import Protocol

from fedpca.federation.aggregator.tree import MergeTree
from fedpca.summaries.summary import Summary

Counted = Callable[[Mapping[str, Summary]], Mapping[str, Summary]]


class Trial(Protocol):
    """Children who may or may not merge."""

    def set(self, child: str, summary: Summary | None) -> None:
        """Add, replace or remove a child."""

    def works(self) -> bool:
        """Whether they merge."""


class TreeTrial:
    """By merging a tree, of which a change concerns one path."""

    def __init__(self, tree: MergeTree) -> None:
        self._tree = tree

    def set(self, child: str, summary: Summary | None) -> None:
        self._tree.set(child, summary)

    def works(self) -> bool:
        return _succeeds(lambda: self._tree.merged().subspace())


class RobustTrial:
    """By merging what counts of each child, which depends on all of them."""

    def __init__(self, tree: Callable[[], MergeTree], counted: Counted) -> None:
        self._tree, self._counted = tree, counted
        self._children: dict[str, Summary] = {}

    def set(self, child: str, summary: Summary | None) -> None:
        if summary is None:
            self._children.pop(child, None)
        else:
            self._children[child] = summary

    def works(self) -> bool:
        return _succeeds(self._merge)

    def _merge(self) -> object:
        tree = self._tree()
        for child, summary in self._counted(self._children).items():
            tree.set(child, summary)
        return tree.merged().subspace()


def find_culprit(summaries: dict[str, Summary], whole: Trial, empty: Trial) -> str:
    """The child, the latest if there are several, without which the others merge.

    If there is none, the first that does not merge with those that came before it.

    Args:
        summaries: at least one, by name, in the order in which they came.
        whole: has all of them.
        empty: has none.
    """
    for child, summary in reversed(summaries.items()):
        whole.set(child, None)
        works = len(summaries) == 1 or whole.works()
        whole.set(child, summary)
        if works:
            return child
    for child, summary in summaries.items():
        empty.set(child, summary)
        if not empty.works():
            return child
    return child


def _succeeds(merge: Callable[[], object]) -> bool:
    try:
        merge()
    except (OSError, MemoryError):
        raise
    except Exception:
        return False
    return True
