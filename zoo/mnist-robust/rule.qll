# Classification robustness: near the data point, the true class stays on top.
outputs 10
parameter epsilon: input = 0.2
forall x in ball(x0, epsilon) and range(0, 1):
  forall c in outputs: label(c) -o forall i in outputs where i != c: y[c] >= y[i]
