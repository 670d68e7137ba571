# Property 1: near the line it should follow, and not too steep, the seed steers within a band.
forall x in domain and -2 <= x["height"] <= 2 and -0.786 <= x["theta"] <= 0.747:
  0.184 <= y["output"] <= 0.19
