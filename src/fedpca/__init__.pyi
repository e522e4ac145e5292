# The public names, each once: type checkers read them here, and __init__.py imports them on first use.
from fedpca import metrics as metrics
from fedpca import plot as plot
from fedpca import progress as progress
from fedpca._util.version import __version__ as __version__
from fedpca.auditing.audit import audit as audit
from fedpca.disclosure.policy import Policy as Policy
from fedpca.errors import BudgetExceeded as BudgetExceeded
from fedpca.errors import ModelFileError as ModelFileError
from fedpca.errors import PolicyViolation as PolicyViolation
from fedpca.estimators.detector import PCADetector as PCADetector
from fedpca.estimators.files import fit_files as fit_files
from fedpca.estimators.limits import AlarmRule as AlarmRule
from fedpca.estimators.limits import ScoreHistogram as ScoreHistogram
from fedpca.estimators.limits import model_distance as model_distance
from fedpca.estimators.private import PrivatePCA as PrivatePCA
from fedpca.estimators.streaming import StreamingPCA as StreamingPCA
from fedpca.estimators.windowed import WindowedPCA as WindowedPCA
from fedpca.federation.aggregator.aggregator import Aggregator as Aggregator
from fedpca.federation.one_process.federated_pca import FederatedPCA as FederatedPCA
from fedpca.privacy.ledger import Ledger as Ledger
from fedpca.privacy.settings import Privacy as Privacy
from fedpca.secure.planning import plan as plan
from fedpca.secure.settings import SecureSums as SecureSums
from fedpca.summaries.about import About as About
from fedpca.summaries.loading import load as load
from fedpca.summaries.merging import merge as merge
from fedpca.summaries.merging import merge_tree as merge_tree
from fedpca.summaries.moments import Moments as Moments
from fedpca.summaries.rank import EnergyBand as EnergyBand
from fedpca.summaries.scaling import Scaling as Scaling
from fedpca.summaries.subspace import Subspace as Subspace
from fedpca.trust.keys import SigningKey as SigningKey
from fedpca.trust.roster import Roster as Roster

__all__: list[str]
