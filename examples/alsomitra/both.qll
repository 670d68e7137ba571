# Properties 1 and 2 of one network: near the line and not too steep, within a band; above the line,
# falling fast and turning down, low.
forall x in domain and -2 <= x["height"] <= 2:
  (-0.786 <= x["theta"] <= 0.747 -> 0.184 <= y["output"] <= 0.19)
  and (x["height"] >= 0 and x["v_y"] <= -0.3 and x["omega"] <= -0.12 -> y["output"] <= 0.187)
