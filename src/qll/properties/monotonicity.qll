# Monotonicity: raising input 0 and changing nothing else does not lower output 0.
parameter step: input = 0.1

forall x in box(0, 1),
       x2 in box(0, 1) and ball(x, step) and x2[0] >= x[0]
             and (forall k in inputs where k != 0: x2[k] == x[k]):
  y2[0] >= y[0]
