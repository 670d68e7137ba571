# Of two cars that differ in their weight alone, the heavier one goes no farther on a gallon.
forall x in domain,
       x2 in domain and x2["Weight"] >= x["Weight"]
            and (forall i in inputs where i != "Weight": x2[i] == x[i]):
  y2["MPG"] <= y["MPG"]
