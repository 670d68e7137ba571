# Property 2: above the line, falling fast and turning down, it steers low.
forall x in domain and 0 <= x["height"] <= 2 and x["v_y"] <= -0.3 and x["omega"] <= -0.12:
  y["output"] <= 0.187
