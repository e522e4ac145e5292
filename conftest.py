"""Files whose examples need torch, which is installed by `make test-torch` only."""

from importlib.util import find_spec

collect_ignore = []
if find_spec("torch") is None:
    collect_ignore += ["src/fedpca/backend/prefetch.py", "docs/how-to/embeddings-on-a-gpu.md"]
if find_spec("triton") is None:
    collect_ignore += ["src/fedpca/trackers/cuda.py"]
