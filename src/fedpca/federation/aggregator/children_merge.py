"""ChildrenMerge: the merge of the latest summaries of all children, and the child that stands in its way."""

from collections.abc import Mapping, Sequence

from fedpca.federation.aggregator.robust import Robust, what_counts
from fedpca.federation.aggregator.tree import MergeTree
from fedpca.summaries.summary import Summary


class ChildrenMerge:
    """The merge of children, of whom all counts or, with a robust rule, what is like the others.

    Args:
        rank: directions of the model; None for all.
        fanout: how many summaries are merged at a time.
        robust: that of the aggregator.

    Attributes:
        tree: the merge; a change of one child recomputes one path.
    """

    def __init__(self, rank: int | None, fanout: int, robust: Robust | None) -> None:
        self.tree = MergeTree(rank, fanout)
        self._robust = robust
        self._children: dict[str, Summary] = {}
        self._counted: dict[str, Summary] = {}  # what a robust rule has left of each
        self._changed = False  # since then

    def set(self, child: str, summary: Summary | None) -> None:
        """Add or replace a child; None removes it."""
        self._children.pop(child, None)
        if summary is not None:
            self._children[child] = summary
        self._changed = True
        if self._robust is None:
            self.tree.set(child, summary)

    @property
    def counted(self) -> Mapping[str, Summary]:
        """What the merge has of each child, by name."""
        return self._children if self._robust is None else self._counted

    def merged(self) -> Summary:
        """Exact moments if all summaries are, else as many directions as inner nodes keep."""
        if self._robust is not None and self._changed:
            before, self._counted = self._counted, what_counts(self._children, self._robust)
            for child in before.keys() | self._counted.keys():
                self.tree.set(child, self._counted.get(child))
            self._changed = False
        return self.tree.merged()

    def culprit(self, children: Sequence[str]) -> str:
        """The child, the latest if there are several, without which the others merge.

        If there is none, the first that does not merge with those that came before it.

        Args:
            children: the names of all, at least one, in the order in which they came.
        """
        whole = dict(self._children)
        for child in reversed(children):
            self.set(child, None)
            works = self._merges()
            self.set(child, whole[child])
            if works:
                return child
        for child in children:
            self.set(child, None)
        found = ""
        for child in children:
            self.set(child, whole[child])
            if not found and not self._merges():
                found = child
        return found or children[-1]

    def _merges(self) -> bool:
        try:
            if self._children:
                self.merged().subspace()
        except (OSError, MemoryError):
            raise
        except Exception:
            return False
        return True
