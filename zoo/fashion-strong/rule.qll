# Strong classification robustness: near the data point, the logit of the true class stays above
# a threshold, given as a probability. A network can meet it by adding a constant to all logits.
outputs 10
parameter epsilon: input = 0.1
parameter delta: probability = 0.7
forall x in ball(x0, epsilon) and range(0, 1):
  forall c in outputs: label(c) -o y[c] >= delta
