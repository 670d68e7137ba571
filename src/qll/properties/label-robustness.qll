# Label robustness for multi-label data: near the data point, every label is predicted rightly.
outputs 6
parameter epsilon: input = 8/255

forall x in ball(x0, epsilon) and range(0, 1):
  forall c in outputs: (label(c) -> y[c] >= 0) and (not label(c) -> y[c] <= 0)
