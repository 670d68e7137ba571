# Lipschitz robustness in the L-infinity norm: every output moves by at most L times the distance
# from the data point. The distance is the largest |x[k] - x0[k]|, so some coordinate must reach it;
# that choice is read hard, because a soft one over hundreds of inputs would be far too lenient.
outputs 10
parameter epsilon: input = 0.1
parameter L: rate = 10

forall x in ball(x0, epsilon) and range(0, 1):
  forall i in outputs:
    (exists[inf] k in inputs:
      y[i] - y0[i] <= L*(x[k] - x0[k]) or[inf] y[i] - y0[i] <= L*(x0[k] - x[k])) and
    (exists[inf] k in inputs:
      y0[i] - y[i] <= L*(x[k] - x0[k]) or[inf] y0[i] - y[i] <= L*(x0[k] - x[k]))
