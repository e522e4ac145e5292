"""ChildrenMerge: the merge of the latest summaries of all children, and the child that stands in its way."""

from collections.abc import Mapping

from fedpca.federation.aggregator.culprit import RobustTrial, TreeTrial, find_culprit
from fedpca.federation.aggregator.robust import RobustRule, what_counts
from fedpca.federation.aggregator.tree import MergeTree
from fedpca.summaries.summary import Summary


class ChildrenMerge:
    """The merge of children, of whom all counts or, with a robust rule, what is like the others.

    Args:
        rank: directions of the model; None for all.
        fanout: how many summaries are merged at a time.
        robust, max_share: those of the aggregator.

    Attributes:
        tree: the merge; a change of one child recomputes one path.
        counted: what it has of each child, by name.
    """

    def __init__(
        self, rank: int | None, fanout: int, robust: RobustRule | None, max_share: float | None
    ) -> None:
        self.counted: Mapping[str, Summary] = {}
        self._rank = rank
        self._fanout = fanout
        self._robust = robust
        self._max_share = max_share
        self._changed: set[str] = set()  # children that the tree does not have yet
        self.tree = self._new_tree()

    def note_change(self, child: str) -> None:
        """Let the next merge take a child as it is then."""
        self._changed.add(child)

    def merged(self, summaries: Mapping[str, Summary]) -> Summary:
        """Exact moments if all summaries are, else as many directions as inner nodes keep."""
        if self._changed:
            self.counted = self._what_counts(summaries)
            for child in self._changed if self._robust is None else self._changed | {*self.counted}:
                self.tree.set(child, self.counted.get(child))
            self._changed = set()
        return self.tree.merged()

    def culprit(self, summaries: dict[str, Summary]) -> str:
        """The child, the latest if there are several, on whose account there is no merge.

        Args:
            summaries: those of all children, in the order in which they came.
        """
        if self._robust is None:
            return find_culprit(summaries, TreeTrial(self.tree), TreeTrial(self._new_tree()))
        whole, empty = (RobustTrial(self._new_tree, self._what_counts) for _ in range(2))
        for child, summary in summaries.items():
            whole.set(child, summary)
        return find_culprit(summaries, whole, empty)

    def _what_counts(self, summaries: Mapping[str, Summary]) -> Mapping[str, Summary]:
        return summaries if self._robust is None else what_counts(summaries, self._robust, self._max_share)

    def _new_tree(self) -> MergeTree:
        return MergeTree(self._rank, self._fanout)
