# Property 3: near the line the output is Lipschitz, L = 0.3 in units of the ranges of inputs and output.
# Said for steps: two points within a `step` of the range of every input (v_x 2.522, v_y 0.5644,
# omega 0.4062, theta 0.9005, x 41.23, and y = height - x 45.88) differ by at most L times as much of
# the output's (0.012). A walk of such steps connects any two points of the region.
parameter L: rate = 0.3
parameter step: input = 0.1
forall x in domain and -2 <= x["height"] <= 2,
       x2 in domain and -2 <= x2["height"] <= 2
            and ball(x, {"v_x": 2.522 * step, "v_y": 0.5644 * step, "omega": 0.4062 * step,
                         "theta": 0.9005 * step, "x": 41.23 * step, "height": 4})
            and -45.88 * step <= x2["height"] - x2["x"] - x["height"] + x["x"] <= 45.88 * step:
  -0.012 * step * L <= y2["output"] - y["output"] <= 0.012 * step * L
