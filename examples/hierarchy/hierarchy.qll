# A dog is a pet, a cat is a pet, a pet is an animal; nothing is a dog and a cat.
set above = {("dog", "pet"), ("cat", "pet"), ("pet", "animal")}
forall x in domain:
  (forall (i, j) in above: y[i] >= 0 -> y[j] >= 0)
  and (y["dog"] <= 0 or y["cat"] <= 0)
