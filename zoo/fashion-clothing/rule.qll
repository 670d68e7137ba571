# Clothing/footwear on Fashion-MNIST: a piece of clothing beats every kind of footwear, and a piece
# of footwear every kind of clothing. Nothing is said of trousers and bags.
outputs 10
parameter epsilon: input = 0.1
set clothing = {0, 2, 3, 4, 6}
set footwear = {5, 7, 9}
forall x in ball(x0, epsilon) and range(0, 1):
  (forall c in clothing: label(c) -o forall i in footwear: y[c] >= y[i]) and forall c in footwear: label(c) -o forall i in clothing: y[c] >= y[i]
