"""Networks that obey by construction: the last layer alone refutes every violation.

The last layer reads activations ``a >= 0`` (they come out of a ReLU). A violation needs some leaves
to be positive all at once; where the mean of these, an affine function of the activations, has no
positive coefficient, there is none, at any input (``projected`` trains such networks). Equality
counts: two outputs that are each other's negative are never both positive. No float bound can show
that, so the arithmetic is the checker's, which is exact, and its answer is the verdict.
"""

from __future__ import annotations

from qll import limits
from qll.networks import Network
from qll.verify.condition import obligations
from qll.verify.proof import ByConstruction
from qll.verify.query import Query
from qll.verify.verdict import Evidence, Status, Verdict

# Conjunctions of leaves are tried one by one; a rule with more of them is not one of these.
_MOST_WAYS = 256
_NOTE = "holds at every input, by the last layer alone"


def by_construction(
    query: Query, known: dict[object, Verdict | None] | None = None
) -> Verdict | None:
    """``verified`` if the checker confirms it; None if the last layer does not say so. It says so
    of every input, so that one of several queries to a network is asked for all regions: ``known``
    is what was found of others."""
    known = {} if known is None else known
    key = (query.condition, query.tie_violates, bool(query.constraints))
    if key not in known:
        known[key] = _by_construction(query)
    return known[key]


def _by_construction(query: Query) -> Verdict | None:
    layers, condition = query.form.layers, query.search
    if not isinstance(query.network, Network):
        return None  # without its file there is nothing to check exactly
    if len(layers) < 2 or condition.inputs is not None or query.constraints:
        return None
    if not query.form.is_relu or [s for s, _ in layers[-1].terms] != [len(layers) - 1]:
        return None  # it reads more than the activations of the last hidden layer
    found = obligations(condition.tree)
    if len(found) > _MOST_WAYS or any(each.waiting for each in found):
        return None
    rows = condition.outputs @ layers[-1].terms[0][1]
    offsets = condition.outputs @ layers[-1].bias + condition.constant
    for each in found:
        leaves = list(each.leaves)
        if rows[leaves].sum(0).max(initial=0.0) > 0 or offsets[leaves].sum() > 0:
            return None
    verdict = Verdict(
        Status.VERIFIED, "construction", bound=0.0, proof=ByConstruction(), notes=(_NOTE,),
        evidence=Evidence.CHECKED,
    )  # fmt: skip
    from qll.verify.certificate import certify  # and with it the checker

    _, answer = certify(query, verdict, stop=lambda: limits.left() <= 0)
    return verdict if answer.confirmed else None
