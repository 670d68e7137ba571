# Output bounds: near the data point, every output stays between two numbers.
outputs 10
parameter epsilon: input = 0.1
parameter lower: logit = -10
parameter upper: logit = 10

forall x in ball(x0, epsilon) and range(0, 1):
  forall i in outputs: lower <= y[i] <= upper
