"""The process of `confide client`, which the command becomes: without typer and rich it takes less memory."""

from __future__ import annotations

import os
import sys

from confide.base.errors import InputError, RunError


def main(arguments: list[str]) -> int:
    """CONFIG [--test-seed N] [--until-finished] [--json], as the command has checked them; returns the exit code."""
    path, *rest = arguments
    seed = int(rest[rest.index("--test-seed") + 1]) if "--test-seed" in rest else None
    try:
        from confide.deploy.node.config import load_client

        config = load_client(path)
        if config.train is None:  # before NumPy is loaded: a built-in model gains nothing from threads
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from confide.deploy.node.client_process import serve

        if "--json" in rest:
            config = config.model_copy(update={"log": "json"})
        serve(config, test_seed=seed, until_finished="--until-finished" in rest)
    except InputError as e:
        return _said(f"error: {e}", 2)
    except RunError as e:
        return _said(f"failed: {e}", 1)
    except KeyboardInterrupt:
        return _said("interrupted", 130)
    return 0


def _said(line: str, code: int) -> int:
    print(" ".join(line.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
