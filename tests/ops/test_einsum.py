"""Einsum against numpy's."""

from __future__ import annotations

import native
import numpy as np
import pytest
from single import Array, model, node

from cuvil.errors import ModelError

EQUATIONS = {
    "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "ij->ji": [(3, 4)],
    "ij->": [(3, 4)],
    "ii->i": [(4, 4)],
    "iij->j": [(4, 4, 3)],
    "i,j->ij": [(3,), (4,)],
    "i,i": [(5,), (5,)],
    "...ij,...jk->...ik": [(2, 5, 3, 4), (2, 1, 4, 6)],
    "...i->...": [(2, 3, 4)],
    "b...c,cd->b...d": [(2, 3, 4, 5), (5, 6)],
    "ab,bc,cd->ad": [(2, 3), (3, 4), (4, 5)],
    "ab,cd,bd->ac": [(2, 3), (4, 5), (3, 5)],
    "aB,Bc->ac": [(2, 3), (3, 4)],
    " i j , j k -> i k ": [(3, 4), (4, 5)],
    "i,i,i->i": [(4,), (4,), (4,)],
}


def arrays(equation: str) -> dict[str, Array]:
    rng = np.random.default_rng(9)
    return {f"x{i}": rng.standard_normal(s).astype(np.float32) for i, s in enumerate(EQUATIONS[equation])}


@pytest.fixture(scope="module")
def results() -> dict[str, list[Array]]:
    models = {}
    for equation in EQUATIONS:
        feeds = arrays(equation)
        m = model([node("Einsum", " ".join(feeds), equation=equation)], feeds, ["y"])
        models[equation] = (m, feeds)
    return native.outputs(models)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, results: dict[str, list[Array]]) -> None:
    wanted = np.einsum(equation, *arrays(equation).values())
    np.testing.assert_allclose(results[equation][0], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("equation", ["ij,jk,kl->il", "ij,jk->iz", "ijk,jk->ik"])
def test_equations_that_do_not_fit(equation: str) -> None:
    feeds = arrays("ij,jk")
    with pytest.raises(ModelError):
        native.prepare(model([node("Einsum", "x0 x1", equation=equation)], feeds, ["y"]))
