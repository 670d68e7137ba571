"""A formula over the outputs as flat arrays, and what a logic states so that it can be compiled.

What a logic states
-------------------
A logic's own file holds plain Python functions (no numba import; ``math`` and arithmetic only),
and the logic hands them over by one method::

    def kernel(self) -> tuple[Mapping[str, Callable[..., float]], tuple[float, ...]]:
        return {"leq": leq, "conj": conj, "disj": disj, "loss": loss, ...}, (parameters, ...)

Names: ``leq`` and ``loss`` are required; ``conj, disj, tensor, par, limp, neg`` as far as the
logic has them (a formula that needs a missing one takes the autograd path). Everything is float64.
``params`` holds the parameters that the method returned. The arrays ``v, g, ...`` are pointers to
the first of ``n`` numbers: index them with ``v[i]``, do not slice, do not ask for their length.

    def leq(a, b, n, params, v, da, db) -> float:
        # for i in range(n): v[i] = value of (a[i] <= b[i]); da[i], db[i] = its derivatives.
        # Returns 0.0 (the result is not used). All comparisons of a formula in one call.

    def conj(v, n, hardness, params, g) -> float:
        # returns the n-ary conjunction of v[0..n) and writes g[i] = its derivative by v[i].
        # The same for disj, tensor, par; limp (n = 2, v[0] -o v[1]); neg (n = 1).
        # ``hardness`` is the node's own if annotated, otherwise what ``logic.hardness`` gives
        # (inf is allowed and means the hard connective; NaN for a logic without hardness).

    def loss(value, params, g) -> float:
        # returns the loss of the root's value and writes g[0] = its derivative.

They must not raise, allocate or print; ``x / 0.0`` gives inf or NaN as in C. Where the torch
reading has a kink, any choice of one-sided derivative will do, but take the torch reading's.
"""
