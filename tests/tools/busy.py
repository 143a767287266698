"""`make test-busy`: the default tests in a random order, beside two busy loops a core.

What fails here and passes alone asserts something about the machine. CONFIDE_ORDER=SEED repeats an order.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time

LOOPS_A_CORE = 2


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    order = os.environ.setdefault("CONFIDE_ORDER", str(secrets.randbelow(10**9)))
    os.environ.setdefault("CONFIDE_PATIENCE", "4")
    print(f"order {order}, beside {LOOPS_A_CORE * cores} busy loops on {cores} cores", flush=True)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS_A_CORE * cores)]
    began = time.monotonic()
    try:
        return subprocess.call([sys.executable, "-m", "pytest", *sys.argv[1:]])
    finally:
        for loop in loops:
            loop.kill()
        print(f"order {order}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
