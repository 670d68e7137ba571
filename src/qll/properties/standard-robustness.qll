# Standard robustness: near the data point, every output moves by at most delta.
outputs 10
parameter epsilon: input = 0.1
parameter delta: logit = 1

forall x in ball(x0, epsilon) and range(0, 1):
  forall i in outputs: y[i] - y0[i] <= delta and y0[i] - y[i] <= delta
