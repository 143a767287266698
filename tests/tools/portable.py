"""`make test-portable`: the default tests with the arithmetic of other processors.

OpenBLAS, NumPy and Numba each choose their kernels by the processor they find, and sums in another order have other
last bits. Each set below is what some other machine would choose; what this processor cannot run is named and left out.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

OLD = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"  # NumPy's groups beyond SSE 4.2
NO_512 = "X86_V4 AVX512_ICL AVX512_SPR"


class Kernels(NamedTuple):
    """Settings of a set of kernels, and the flags of the processors that can run it."""

    openblas: str
    numpy_without: str
    numba: str
    needs: frozenset[str] = frozenset()


SETS = {  # the kernels that OpenBLAS' wheels have; for AMD's processors they choose among these
    "any processor of the last twenty years": Kernels("Prescott", OLD, "generic"),
    "Intel before 2013": Kernels("Sandybridge", OLD, "sandybridge", frozenset({"avx"})),
    "Intel from 2013 and AMD, no AVX-512": Kernels("Haswell", NO_512, "haswell", frozenset({"avx2", "fma"})),
    "AVX-512": Kernels("SkylakeX", "", "skylake-avx512", frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"})),
}


def has() -> frozenset[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def main() -> int:
    if platform.machine() != "x86_64":
        print(f"kernels can be chosen on x86_64 only, this is {platform.machine()}")
        return 1
    flags, failed, lacking = has(), [], []
    for name, kernels in SETS.items():
        if missing := kernels.needs - flags:
            lacking.append(f"{name} (needs {' '.join(sorted(missing))})")
            continue
        print(f"== {name}: OpenBLAS {kernels.openblas}, Numba {kernels.numba}", flush=True)
        environment = os.environ | {
            "OPENBLAS_CORETYPE": kernels.openblas,
            "NPY_DISABLE_CPU_FEATURES": " ".join(g for g in kernels.numpy_without.split() if supported(g)),
            "NUMBA_CPU_NAME": kernels.numba,
            "NUMBA_CPU_FEATURES": "",
        }
        if subprocess.call([sys.executable, "-m", "pytest", *sys.argv[1:]], env=environment):
            failed.append(name)
    print(f"{len(SETS) - len(lacking) - len(failed)} sets of kernels passed, {len(failed)} failed")
    for why, names in (("failed", failed), ("this processor lacks", lacking)):
        for name in names:
            print(f"  {why}: {name}")
    return 1 if failed else 0


def supported(group: str) -> bool:
    """NumPy warns, and warnings are errors, when a group is disabled that this processor does not have."""
    from numpy._core._multiarray_umath import __cpu_features__

    return bool(__cpu_features__.get(group))


if __name__ == "__main__":
    sys.exit(main())
