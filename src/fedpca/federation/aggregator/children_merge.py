"""ChildrenMerge: the merge of the latest summaries of all children, and the child that stands in its way."""

from collections.abc import Mapping

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
        counted: what it has of each child, by name.
    """

    def __init__(self, rank: int | None, fanout: int, robust: Robust | None) -> None:
        self.counted: Mapping[str, Summary] = {}
        self.tree = MergeTree(rank, fanout)
        self._robust = robust
        self._children: Mapping[str, Summary] | None = None  # whom `counted` is of

    def merged(self, children: Mapping[str, Summary]) -> Summary:
        """Exact moments if all summaries are, else as many directions as inner nodes keep."""
        if self._children is None or _changed(self._children, children):
            counted = children if self._robust is None else what_counts(children, self._robust)
            for child in _changed(self.counted, counted):
                self.tree.set(child, counted.get(child))
            self.counted, self._children = dict(counted), dict(children)
        return self.tree.merged()

    def culprit(self, children: Mapping[str, Summary]) -> str:
        """The child, the latest if there are several, without which the others merge.

        If there is none, the first that does not merge with those that came before it.

        Args:
            children: at least one, in the order in which they came.
        """
        for child in reversed([*children]):
            if self._merges({name: each for name, each in children.items() if name != child}):
                return child
        first: dict[str, Summary] = {}
        for child, summary in children.items():
            first[child] = summary
            if not self._merges(first):
                break
        return child

    def _merges(self, children: Mapping[str, Summary]) -> bool:
        try:
            if children:
                self.merged(children).subspace()
        except (OSError, MemoryError):
            raise
        except Exception:
            return False
        return True


def _changed(before: Mapping[str, Summary], after: Mapping[str, Summary]) -> set[str]:
    """The names of children who came, left or have another summary."""
    return {name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)}
