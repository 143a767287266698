"""A problem of your own as a table of the config: a temperature to predict from the hour of the day.

From Python the table makes its problem, as below. For `[problem] name = "waves"` in a config, put the class into a
package of yours, announce it in that package's pyproject.toml, and install the package beside confide:

    [project.entry-points."confide.problems"]
    waves = "own_problem:Waves"
"""

from typing import Literal

from pydantic import Field

import confide
from confide.problems import Problem, ProblemConfig


class Waves(ProblemConfig):
    name: Literal["waves"] = Field("waves", description="temperatures over a day")
    units: int = Field(5, description="P, towns")
    clients: int = Field(20, description="K, thermometers of each town")
    readings: int = Field(24, description="N, of each thermometer")
    noise: float = Field(0.1, description="standard deviation of a reading")
    rho: float = Field(0.01, description="regulariser rho |w|^2")
    seed: int | None = Field(None, description="of the data; the top-level seed by default")

    def make(self, seed):
        import numpy as np  # a config is read more often than its data are made: what is heavy is imported here

        rng = np.random.default_rng(self.arguments(seed)["seed"])

        def read(rows):
            angle = 2 * np.pi * rng.random(rows)
            X = np.column_stack([np.sin(angle), np.cos(angle)])
            return X, X @ [1.0, -0.5] + self.noise * rng.standard_normal(rows)

        towns = [[read(self.readings) for _ in range(self.clients)] for _ in range(self.units)]
        federation, model = confide.Federation.from_clients(towns), confide.models.Linear(self.rho)
        spec = self.model_dump()  # is saved with a run
        return Problem(federation, model, test=read(200), spec=spec, private=False)  # nobody's data: from a seed


if __name__ == "__main__":
    problem = Waves(units=4).make(seed=1)
    run = confide.simulate(problem, confide.Graph.ring(4), confide.GFL(step=0.1, sampled=5), rounds=60, repeats=2)
    print(run)
    assert run.final["test_metric"] < 0.2
