# Not both: two opposite faces of a die are never predicted together (face k has index k - 1).
outputs 6
parameter epsilon: input = 0.01568627450980392
set opposite = {(0, 5), (1, 4), (2, 3)}
define predicted(i) = y[i] >= 0
forall x in ball(x0, epsilon) and range(0, 1):
  forall (i, j) in opposite: not predicted(i) or not predicted(j)
