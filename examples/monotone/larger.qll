# Of two cars that differ in weight, displacement and horsepower alone, the one that has no less of
# any of these goes no farther on a gallon.
set size = {"Weight", "Displacement", "Horsepower"}
forall x in domain,
       x2 in domain and (forall i in size: x2[i] >= x[i])
            and (forall i in inputs where i not in size: x2[i] == x[i]):
  y2["MPG"] <= y["MPG"]
