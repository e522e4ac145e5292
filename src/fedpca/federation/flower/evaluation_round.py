"""EvaluationRound: how good a private model is, by sums of the nodes that released."""

from collections.abc import Mapping

from fedpca._typing import JSON
from fedpca._util.extras import require
from fedpca.federation.aggregator.aggregator import Aggregator
from fedpca.federation.aggregator.message import Message
from fedpca.federation.aggregator.owner_sum import OwnerSum
from fedpca.federation.flower.intake import Intake
from fedpca.federation.flower.round import NodeReply, Outcome, contents_of, received
from fedpca.privacy import StepSum
from fedpca.privacy.model import PrivateModel
from fedpca.summaries.subspace import Subspace

require("flwr", extra="flower", purpose="a Flower federation")
from flwr.app import Message as FlowerMessage  # noqa: E402

# Of the rows of a model: missing ones are taken to be alike, which a minority may be, and most may not.
_LEAST_EVALUATED = 0.5


class EvaluationRound:
    """The sums of an evaluation, as they come.

    Args:
        machine: that knows how sums are checked and pooled.
        model: what is evaluated; it has a certificate.
        clients: whose release came from each node.
        aggregator: has the number of rows of each.
        intake: checks signatures.
        max_bytes: larger replies are rejected before they are parsed.

    Attributes:
        sums: by client.
    """

    def __init__(
        self,
        machine: PrivateModel,
        model: Subspace,
        clients: Mapping[int, str],
        aggregator: Aggregator,
        intake: Intake,
        max_bytes: int,
    ) -> None:
        self.sums: dict[str, StepSum] = {}
        self._machine = machine
        self._model = model
        self._clients = clients
        self._aggregator = aggregator
        self._intake = intake
        self._max_bytes = max_bytes

    @property
    def is_complete(self) -> bool:
        """Whether all have sent a sum."""
        return set(self._clients.values()) == self.sums.keys()

    @property
    def n_rows(self) -> int:
        """Of all who have."""
        return sum(each.n_rows for each in self.sums.values())

    def receive(self, node: int, message: FlowerMessage | Exception) -> NodeReply:
        """Take the sum of a node, if it is one of this model and of the rows of its release."""
        return received(node, message, self._opened, self._take)

    def _opened(self, message: FlowerMessage) -> tuple[str, bytes]:
        return "", contents_of(message, self._max_bytes)[1]

    def _take(self, node: int, contents: bytes) -> tuple[Outcome, str]:
        owner, client = Message.decode(contents, "the sum"), self._clients[node]
        own = owner.of(OwnerSum).own
        if owner.child != client:
            raise ValueError(f"its sum must be that of {client!r:.80}, got {owner.child!r:.80}.")
        self._intake.check_signed(owner)
        n_rows = self._aggregator.children[client].count
        if own.n_rows != n_rows:
            raise ValueError(f"n_rows must be that of its release, {n_rows:g}, got {own.n_rows}.")
        self._machine.evaluation_sum(self._model).check_own(own)
        self.sums[client] = own
        return "taken", "its evaluation."

    def result(self) -> tuple[Subspace, JSON]:
        """The model with the measure, and the measure as JSON; without, where too few rows were heard of."""
        model, n_rows = self._model, self.n_rows
        if n_rows < _LEAST_EVALUATED * model.count:
            return model, {}
        found = self._machine.evaluation(StepSum.pooled([*self.sums.values()]), model)
        found = found.scaled(model.count / n_rows)  # what nodes are missing is taken to be alike
        explained, low, high = found.explained()
        assert model.certificate is not None
        evaluated = model.with_about(certificate=model.certificate.evaluated(found)).evaluated(found)
        return evaluated, {"explained": explained, "interval": [low, high], "beyond": found.beyond}
