"""What the experts' backward kernels must compute (see backward_twins.py).

Shapes: R rows, K columns, E experts, S slots (experts per row).
"""

import numpy as np
from numpy.typing import NDArray

from wgemma.reference.backward_twins import rms_back
from wgemma.reference.twins import Array, wide


def experts_join_back(dense: Array, routed: Array, norms: Array, dy: Array, eps: float) -> tuple[Array, Array]:
    """(d_dense, d_sum) of norm₁ ⊙ rms(dense) + norm₂ ⊙ rms(Σₛ routed[s])."""
    first, second = norms
    return rms_back(dense, first, dy, eps), rms_back(wide(routed).sum(axis=1), second, dy, eps)


def experts_back(w: Array, dy: Array, chosen: NDArray[np.int64]) -> Array:
    """dx[r, s] = dy[r, s] · W[chosen[r, s]], or dy[r] for all slots.  w [E, N, K] → [R, S, K]."""
    given = wide(dy) if dy.ndim == 3 else np.broadcast_to(wide(dy)[:, None], (*chosen.shape, dy.shape[-1]))
    dx: Array = np.einsum("rsn,rsnk->rsk", given, wide(w)[chosen])
    return dx


def route_back(
    scores: Array, expert_scale: Array, chosen: NDArray[np.int64], act: Array, d_act: Array
) -> tuple[Array, Array]:
    """(weight · d_act, dscores), with weight = scale · softmax over the chosen scores."""
    best, scale = np.take_along_axis(wide(scores), chosen, axis=-1), wide(expert_scale)[chosen]
    shares = np.exp(best - best[:, :1])
    shares /= shares.sum(axis=-1, keepdims=True)
    slopes = scale * (wide(d_act) * wide(act)).sum(axis=-1)  # [R, S]
    dscores = np.zeros(scores.shape)
    np.put_along_axis(dscores, chosen, shares * (slopes - (shares * slopes).sum(axis=-1, keepdims=True)), axis=-1)
    return wide(d_act) * (scale * shares)[..., None], dscores


def experts_norm_back(v: Array, norms: Array, d_dense: Array, d_experts: Array, d_router: Array, eps: float) -> Array:
    """The gradient of v through norm[i] ⊙ rms(v), i = 1, 2, 3; d_experts are summed over their slots."""
    above = zip(norms[1:], (d_dense, d_experts.sum(axis=1), d_router), strict=True)
    dv: Array = np.sum([rms_back(v, norm, dx, eps) for norm, dx in above], axis=0)
    return dv
