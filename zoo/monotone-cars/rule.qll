# Of two cars that differ in weight, displacement and horsepower alone, the one that has no less of
# any of these goes no farther on a gallon.
outputs MPG
inputs Cylinders, Displacement, Horsepower, Weight, Acceleration, "Model Year", Origin
set size = {Weight, Displacement, Horsepower}
forall x in box([3, 68, 46, 1613, 8, 70, 1], [8, 455, 230, 5140, 25, 82, 3]) and integer(x[0], x[2], x[3], x[5], x[6]), x2 in box([3, 68, 46, 1613, 8, 70, 1], [8, 455, 230, 5140, 25, 82, 3]) and integer(x2[0], x2[2], x2[3], x2[5], x2[6]) and (forall i in size: x2[i] >= x[i]) and (forall i in inputs where i not in size: x2[i] == x[i]):
  y2["MPG"] <= y["MPG"]
