"""A problem knows its optimum and its risk, and says where it does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from confide.base.errors import InputError
from confide.problems import Problem, optimum, regression
from confide.problems.federation import Federation
from confide.problems.models import GLM, Linear, Logistic, Softmax
from paper import sample_weights


@dataclasses.dataclass(frozen=True)
class Absolute:
    """A model of the user's own: |d - u'w|, and one parameter more than there are features."""

    rho: float = 0.0

    def dimension(self, features: int) -> int:
        return features + 1

    def loss(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
        return np.abs(d - X @ w[:-1] - w[-1])

    def gradients(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def metrics(self, w: np.ndarray, X: np.ndarray, d: np.ndarray) -> dict[str, float]:
        return {}


def ragged() -> Federation:
    rng = np.random.default_rng(3)

    def client(n: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((n, 2)) + rng.standard_normal(2)
        return X, np.where(X[:, 0] + rng.standard_normal(n) > 0, 1.0, -1.0)

    return Federation.from_clients([[client(n) for n in sizes] for sizes in ([30, 3], [11], [5, 8, 20])])


@pytest.mark.parametrize("model", [Linear(0.2), Logistic(0.2)], ids=["linear", "logistic"])
def test_risk_and_optimum_weigh_units_and_clients_equally(model: GLM) -> None:
    f = ragged()
    p = Problem(f, model)
    assert p.M == 2
    for w in np.random.default_rng(0).standard_normal((4, 2)):
        units = [np.mean([np.mean(model.loss(w, *f.client(u, k))) for k in range(f.K[u])]) for u in range(f.P)]
        assert p.risk(w) == pytest.approx(np.mean(units), rel=1e-12)
        assert p.risk(w) > p.risk(p.optimum)
    for e in (1e-4 * np.eye(2)).tolist():
        assert p.risk(p.optimum + e) > p.risk(p.optimum) < p.risk(p.optimum - e)


@pytest.mark.parametrize("model", [Linear(0.2), Logistic(0.2)], ids=["linear", "logistic"])
def test_the_optimum_is_solved_once(model: GLM, monkeypatch: pytest.MonkeyPatch) -> None:
    p = Problem(ragged(), model)
    first = p.optimum
    monkeypatch.setattr(optimum, "solve", lambda *_: pytest.fail("solved again"))
    assert p.optimum is first


def test_the_risk_of_a_linear_problem_reads_the_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    p = regression(2, 2, 5)
    p.risk(np.zeros(2))
    monkeypatch.setattr(optimum, "_blocks", lambda *_: pytest.fail("read again"))
    assert p.risk(np.ones(2)) > 0


@pytest.mark.parametrize("label", [-1.0, 2.0, 0.5])
def test_labels_are_those_of_the_model(label: float) -> None:
    f = ragged()
    classes = Federation(f.X, (f.d + 1) / 2, f.client_offsets, f.unit_offsets)
    assert Problem(classes, Softmax(0.1, classes=2)).optimum is not None
    assert Problem(classes, Softmax(0.0, classes=2)).optimum is None
    for model in (Softmax(classes=2), Logistic()):
        if isinstance(model, Logistic) and label == -1.0:
            continue
        fine = (f if isinstance(model, Logistic) else classes).d.copy()
        fine[7] = label
        with pytest.raises(InputError, match=r"problem\.label = .*labels of this model are"):
            Problem(Federation(f.X, fine, f.client_offsets, f.unit_offsets), model)


class Begun(Absolute):
    """It begins where it is told."""

    at = (1.0, 2.0, 3.0)

    def start(self) -> np.ndarray:
        return np.array(self.at)


def test_a_problem_begins_at_zero_or_where_its_model_says() -> None:
    assert Problem(ragged(), Linear()).start.tolist() == [0.0, 0.0]
    assert Problem(ragged(), Begun()).start.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("at", [(1.0, 2.0), (1.0, 2.0, np.nan), ((1.0, 2.0, 3.0),)])
def test_initial_weights_that_are_no_model_are_refused(at: tuple[object, ...]) -> None:
    with pytest.raises(InputError, match="must give 3 finite numbers"):
        _ = Problem(ragged(), type("Wrong", (Begun,), {"at": at})()).start


def test_a_model_of_the_users_own_has_a_risk_but_no_known_optimum() -> None:
    f = ragged()
    p = Problem(f, Absolute())
    assert p.optimum is None
    assert p.M == 3
    w = np.array([0.5, -1.0, 2.0])
    assert p.risk(w) == pytest.approx(sample_weights(f) @ np.abs(f.d - f.X @ w[:2] - 2), rel=1e-12)


@pytest.mark.parametrize("model", [Linear(), Logistic()], ids=["linear", "logistic"])
def test_where_no_optimum_is_unique_none_is_claimed(model: GLM) -> None:
    f = ragged()
    p = Problem(Federation(f.X[:, [0, 0]], f.d, f.client_offsets, f.unit_offsets), model)
    assert p.optimum is None
    assert p.risk(np.zeros(2)) == pytest.approx({"linear": 1.0, "logistic": np.log(2)}[model.name])


def test_what_was_not_said_is_empty() -> None:
    p = Problem(ragged(), Linear())
    assert p.spec == {"name": "custom"}
    assert (p.test, p.notes, p.features) == (None, (), None)
    assert p.spec is not Problem(ragged(), Linear()).spec
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.model = Linear(1.0)
