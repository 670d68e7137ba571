# Exactly one: of two opposite faces of a die, one is predicted and the other is not. The margin is
# for training; the property is judged at margin 0.
outputs 6
parameter epsilon: input = 0.01568627450980392
parameter margin: logit = 0
set opposite = {(0, 5), (1, 4), (2, 3)}
define on(i) = y[i] >= margin
define off(i) = y[i] <= -margin
forall x in ball(x0, epsilon) and range(0, 1):
  forall (i, j) in opposite: (off(i) or off(j)) and (on(i) or on(j))
