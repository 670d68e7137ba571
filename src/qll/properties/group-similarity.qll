# Group similarity: any two outputs of a group differ by at most delta. The group shown is the
# clothing of Fashion-MNIST.
outputs 10
parameter epsilon: input = 0.1
parameter delta: logit = 2
set group = {0, 2, 3, 4, 6}

forall x in ball(x0, epsilon) and range(0, 1):
  forall i in group, j in group where i != j: y[i] - y[j] <= delta
