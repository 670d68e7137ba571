# Clothing/footwear as the published runs train it: always eight conjuncts, one for each rival i.
# Where the rival does not apply to the label, the true logit is compared with itself: value 0.
outputs 10
parameter epsilon: input = 0.1
set clothing = {0, 2, 3, 4, 6}
set footwear = {5, 7, 9}
set rivals = {5, 7, 9, 0, 2, 3, 4, 6}

forall x in ball(x0, epsilon) and range(0, 1):
  forall i in rivals:
    (forall c in clothing where i in footwear: label(c) -o y[c] >= y[i]) and
    (forall c in footwear where i in clothing: label(c) -o y[c] >= y[i]) and
    (forall c in outputs where c not in clothing and i in footwear: label(c) -o y[c] >= y[c]) and
    (forall c in outputs where c not in footwear and i in clothing: label(c) -o y[c] >= y[c])
