# Classification robustness as the published runs train it: the true class is compared with itself
# too, a conjunct of value 0, for every logic.
outputs 10
parameter epsilon: input = 0.2

forall x in ball(x0, epsilon) and range(0, 1):
  forall c in outputs: label(c) -o
    forall i in outputs: y[c] >= y[i]
