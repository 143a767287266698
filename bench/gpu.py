"""How fast the device engine is on a GPU, beside what the GPU can do, measured in the same run.

    PYTHONPATH=src python3 bench/gpu.py [--framework jax|torch] [--part PART]... [--seconds N] [--small] [--json]

Needs NumPy and JAX, or PyTorch, alone. Every part is checked before it is timed: the regression against the reference
rounds, networks by a loss that falls. A part that fails says so, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from confide.engines.device.engine import DeviceEngine
from confide.engines.plain import PlainEngine
from confide.engines.recording import Recording
from confide.graph.graph import Graph
from confide.problems.federation import Federation
from confide.problems.gaussian import regression as paper
from confide.problems.networks import constructors
from confide.problems.networks.named import built_in
from confide.problems.problem import Problem
from confide.rounds.algorithm import GFL
from confide.rounds.schemes import scheme

BEGAN = time.perf_counter()


class Bench:
    """One run of the benches.

    Attributes:
        small: sizes for a CPU, to see that everything runs.
        found: what was measured, by part.
    """

    def __init__(self, framework: str, seconds: float, small: bool, quiet: bool, profile: bool) -> None:
        self.framework, self.seconds, self.small, self.quiet, self.profile = framework, seconds, small, quiet, profile
        self.device = "cpu" if small else "gpu"
        self.found: dict[str, Any] = {}

    def say(self, name: str, numbers: dict[str, Any]) -> None:
        if name != "run":
            self.found[name] = numbers
        if not self.quiet:
            shown = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in numbers.items()}
            print(f"[{time.perf_counter() - BEGAN:6.1f} s] {name}: {json.dumps(shown)}", flush=True)

    def timed(self, call: Callable[[], Any], seconds: float | None = None) -> tuple[float, float]:
        """Median seconds of a call, and how far the middle half of them is spread, over the median."""
        call()
        took: list[float] = []
        end = time.perf_counter() + (self.seconds if seconds is None else seconds)
        while len(took) < 5 or time.perf_counter() < end:
            began = time.perf_counter()
            call()
            took.append(time.perf_counter() - began)
            if sum(took) > 2 * self.seconds:
                break
        low, middle, high = np.quantile(took, (0.25, 0.5, 0.75))
        return float(middle), float((high - low) / middle)

    # ---- what the device can do

    def ceilings(self) -> None:
        n, length = (256, 1 << 16) if self.small else (8192, 1 << 30)
        products, copy = (jax_ceilings if self.framework == "jax" else torch_ceilings)(n, length, self.device)
        rates = {f"{name}_tflops": 2e-12 * n**3 / self.timed(f, self.seconds / 4)[0] for name, f in products.items()}
        self.say("ceilings", {**rates, "memory_tbs": 8e-12 * length / self.timed(copy, self.seconds / 4)[0]})

    # ---- the parts

    def regression(self) -> None:
        repeats, rounds = (8, 16) if self.small else (1000, 1024)
        problem, graph, algorithm = paper(), Graph.random(10, 0.4, seed=0), GFL()
        for way in ("in registers", "closed form"):
            self.guarded(partial(self._regression, way, problem, graph, algorithm, repeats, rounds))

    def _regression(self, way: str, problem: Problem, graph: Graph, algorithm: GFL, repeats: int, rounds: int) -> None:
        engine = DeviceEngine(
            problem, [graph], algorithm, rounds, 0, framework=self.framework, device=self.device, way=way
        )
        if way not in engine._ways:
            return
        began = time.perf_counter()
        few, plain = Recording.empty(repeats, 3, 2, 3), PlainEngine(problem, [graph], algorithm, 3, 0)
        state, want = engine.states(repeats)[0], plain.start()
        engine.rounds = 3
        engine.advance(0, state, 1, 3, few)
        engine.rounds = rounds
        plain.advance(0, want, 1, 3, Recording.empty(1, 3, 2, 3))
        error = float(np.abs(engine.models(state)[0] - want).max())
        first = time.perf_counter() - began
        if not error < 1e-4:
            raise AssertionError(f"after three rounds the models differ from the reference by {error:g}")
        out = Recording.empty(repeats, rounds, 2, 256)
        held = engine.states(repeats)[0]
        took, spread = self.timed(lambda: engine.advance(0, held, 1, rounds, out))
        numbers = {"million_rounds_per_s": 1e-6 * repeats * rounds / took, "spread": spread, "error_of_3_rounds": error}
        fresh = engine.states(repeats)[0]
        engine.advance(0, fresh, 1, rounds, out)
        ends = {"msd_first": float(out.centroid_msd[:, 0].mean()), "msd_last": float(out.centroid_msd[:, -50:].mean())}
        self.say(f"regression, {way}", numbers | ends | {"first_call_s": first})
        if self.profile:
            self.kernels(lambda: engine.advance(0, held, 1, min(rounds, 64), out), min(rounds, 64))

    def mlp(self) -> None:
        P, L = (3, 2) if self.small else (100, 10)
        model = built_in("mlp", features=784, classes=10, hidden=[200], framework=self.framework)
        flops = P * L * 5 * 20 * (2 * 2 * 784 * 200 + 3 * 2 * 200 * 10)
        problem = images(P, 20, 60, model)
        for way, half in (("Gram form", False), ("Gram form", True), ("direct", False)):
            self.guarded(partial(self.network, "mlp", way, problem, L, 5, 20, 0.1, flops, 100, half))

    def cnn(self) -> None:
        P, L = (2, 2) if self.small else (100, 10)
        model = built_in("cnn", features=784, classes=10, framework=self.framework)
        products = zip(model.description.products, (576, 64, 1), strict=True)
        flops = P * L * 5 * 20 * sum(3 * 2 * a * b * n for (a, b), n in products)
        self.network("cnn", "direct", images(P, 20, 60, model), L, 5, 20, 0.05, flops, 10)

    def transformer(self) -> None:
        if self.framework != "jax":
            return
        from transformer import Sizes

        for half in (False, True):
            sizes = Sizes(width=64, length=16, heads=2, half=half) if self.small else Sizes(half=half)
            L, batch = (1, 2) if self.small else (2, 32)
            model = constructors.jax(sizes.init, sizes.loss)
            rng = np.random.default_rng(1)
            walk = np.cumsum(rng.integers(0, 3, (8 * 4 * 64, sizes.length + 1)), axis=1) % sizes.tokens
            problem = even(walk.astype(float), np.zeros(len(walk)), 8, 4, model)
            flops = 8 * L * 2 * batch * sizes.flops
            name = f"transformer of {problem.M:,} parameters, {'bf16' if half else 'TF32'} inside"
            self.guarded(partial(self.network, name, "direct", problem, L, 2, batch, 0.5, flops, 10))

    def network(
        self,
        name: str,
        way: str,
        problem: Problem,
        L: int,
        E: int,
        batch: int,
        step: float,
        flops: float,
        rounds: int,
        half: bool = False,
    ) -> None:
        rounds = 2 if self.small else rounds
        quiet = scheme("homomorphic", sigma=1e-5)
        algorithm = GFL(quiet, step=step, sampled=L, local_steps=E, batch=batch)
        P = problem.federation.P
        engine = DeviceEngine(
            problem,
            [Graph.ring(P)],
            algorithm,
            rounds,
            0,
            framework=self.framework,
            device=self.device,
            way=way,
            half_rows=half,
        )
        if way not in engine._ways:
            return
        began = time.perf_counter()
        held = engine.states(1)[0]
        out = Recording.empty(1, rounds, problem.M, rounds)
        before = self.score(problem, engine, held)
        engine.advance(0, held, 1, rounds, out)
        first, after = time.perf_counter() - began, self.score(problem, engine, held)
        if not (after < before or self.small):
            raise AssertionError(f"{name}: the loss went from {before:g} to {after:g}")
        took, spread = self.timed(lambda: engine.advance(0, held, 1, rounds, out))
        numbers = {
            "rounds_per_s": rounds / took,
            "spread": spread,
            "tflops_counted_direct": 1e-12 * flops * rounds / took,
        }
        self.say(
            f"{name}, {way}{', rows in bf16' if half else ''}",
            numbers | {"loss_before": before, "loss_after": after, "first_call_s": first},
        )
        if self.profile:
            self.kernels(lambda: engine.advance(0, held, 1, 4, out), 4)

    def score(self, problem: Problem, engine: DeviceEngine, held: Any) -> float:
        f = problem.federation
        return float(problem.model.loss(engine.models(held)[0, 0], f.X[:256], f.d[:256]).mean())

    # ---- how

    def guarded(self, part: Callable[[], None]) -> None:
        """Whatever goes wrong in one part is told, and the others go on."""
        try:
            part()
        except Exception as e:
            self.found.setdefault("failed", []).append(f"{type(e).__name__}: {e}"[:300])
            traceback.print_exc(limit=4)

    def kernels(self, call: Callable[[], Any], rounds: int, most: int = 14) -> None:
        """Which kernels a call spends its time in."""
        if self.framework != "jax":
            return
        import jax

        call()
        with TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                call()
            spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
            file = next(Path(folder).rglob("*.xplane.pb"))
            for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
                for line in plane.lines if "GPU" in plane.name else ():
                    for event in line.events if "Stream" in line.name else ():
                        spent[event.name][0] += 1e-3 * event.duration_ns / rounds
                        spent[event.name][1] += 1 / rounds
        total, launched = (sum(column) for column in zip(*spent.values(), strict=True)) if spent else (0.0, 0.0)
        print(f"      {total:.1f} us a round in {launched:.0f} kernels", flush=True)
        for event, (micro, n) in sorted(spent.items(), key=lambda e: -e[1][0])[:most]:
            print(f"      {micro:9.1f} us {n:6.1f} x {event[:100]}", flush=True)


def jax_ceilings(n: int, length: int, device: str) -> tuple[dict[str, Callable[[], Any]], Callable[[], Any]]:
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.matmul, static_argnames="precision")
    kinds = {"tf32": (jnp.float32, "default"), "bf16": (jnp.bfloat16, "default"), "float32": (jnp.float32, "highest")}

    def one(kind: Any, precision: str) -> Callable[[], Any]:
        a, b = (jax.random.normal(jax.random.key(k), (n, n), jnp.float32).astype(kind) for k in (0, 1))
        return lambda: product(a, b, precision=precision).block_until_ready()

    x, scaled = jax.random.normal(jax.random.key(2), (length,), jnp.float32), jax.jit(lambda x: x * 1.0001)
    return {name: one(*how) for name, how in kinds.items()}, lambda: scaled(x).block_until_ready()


def torch_ceilings(n: int, length: int, device: str) -> tuple[dict[str, Callable[[], Any]], Callable[[], Any]]:
    import torch

    where = "cuda" if device == "gpu" else "cpu"

    def done(f: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> None:
            f()
            if where == "cuda":
                torch.cuda.synchronize()

        return call

    def one(kind: Any, precision: str) -> Callable[[], Any]:
        a, b = torch.randn(n, n, device=where, dtype=kind), torch.randn(n, n, device=where, dtype=kind)

        def product() -> None:
            torch.set_float32_matmul_precision(precision)
            torch.matmul(a, b)

        return done(product)

    x = torch.randn(length, device=where)
    kinds = {"tf32": (torch.float32, "high"), "bf16": (torch.bfloat16, "high"), "float32": (torch.float32, "highest")}
    return {name: one(*how) for name, how in kinds.items()}, done(lambda: x * 1.0001)


def images(P: int, K: int, N: int, model: Any) -> Problem:
    """Ten classes around ten centres."""
    rng = np.random.default_rng(0)
    d, centres = rng.integers(0, 10, P * K * N), rng.standard_normal((10, 784))
    X = rng.standard_normal((P * K * N, 784), dtype=np.float32)
    return even((X + 0.3 * centres[d]).astype(np.float64), d.astype(float), P, K, model)


def even(X: Any, d: Any, P: int, K: int, model: Any) -> Problem:
    """P units of K clients with equal shares of the rows."""
    offsets = np.arange(P * K + 1) * (len(d) // (P * K))
    return Problem(Federation(X, d, offsets, np.arange(P + 1) * K), model, private=False)


def about(framework: str) -> dict[str, str]:
    """When and with what."""
    if framework == "jax":
        import jax

        version, machine = jax.__version__, jax.devices()[0].device_kind
    else:
        import torch

        version = torch.__version__
        machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions = f"Python {sys.version.split()[0]}, numpy {np.__version__}, {framework} {version}"
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine, "versions": versions}


PARTS = ("regression", "mlp", "transformer", "cnn")


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--framework", choices=("jax", "torch"), default="jax")
    parse.add_argument("--part", choices=PARTS, action="append", help="all by default")
    parse.add_argument("--seconds", type=float, default=2.0, help="of timing, for each figure")
    parse.add_argument("--small", action="store_true", help="on a CPU, to see that it runs")
    parse.add_argument("--profile", action="store_true", help="list the kernels (JAX)")
    parse.add_argument("--json", action="store_true", help="one line at the end")
    given = parse.parse_args()
    bench = Bench(given.framework, given.seconds, given.small, given.json, given.profile)
    bench.found |= about(given.framework)
    bench.say("run", about(given.framework))
    for part in ("ceilings", *(given.part or PARTS)):
        bench.guarded(getattr(bench, part))
    if given.json:
        print(json.dumps(bench.found))


if __name__ == "__main__":
    main()
