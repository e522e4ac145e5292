"""Benchmarks, with one BLAS thread unless the environment variable BENCHMARK_THREADS gives another number.

The limits are set here, before numpy is imported by any of them.
"""

import os

THREADS = int(os.environ.get("BENCHMARK_THREADS", "1"))
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_variable] = str(THREADS)
