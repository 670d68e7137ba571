# Properties 1 and 2 of one network: near the line and not too steep, within a band; above the line,
# falling fast and turning down, low.
outputs output
inputs v_x, v_y, omega, theta, x, height
forall x in box([0.967568147250241, -0.607397104011979, -0.356972794479088, -0.968478529510599, 0.482420778264618, -2], [3.48989306860338, -0.0430213913370033, 0.0491802227578861, -0.0680025161509444, 41.7147170009992, 6]) and (-2 <= x["height"] and x["height"] <= 2):
  (-0.786 <= x["theta"] and x["theta"] <= 0.747 -> 0.184 <= y["output"] and y["output"] <= 0.19) and (x["height"] >= 0 and x["v_y"] <= -0.3 and x["omega"] <= -0.12 -> y["output"] <= 0.187)
