"""A federation through a shared folder: owners publish, readers collect; `secure` has secure sums."""

from fedpca.federation.folder.exchange import CollectedScaling, collect, collect_scaling, publish
from fedpca.federation.folder.storage import SkippedFile

__all__ = ["CollectedScaling", "SkippedFile", "collect", "collect_scaling", "publish"]
