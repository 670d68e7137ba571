# Vehicle's wind controller, as its specification has it, for the published network: that takes
# positions of -4 to 4 metres as 0 to 1, so that 16 x[0] - 8 x[1] - 4 is 2 now - before in metres.
inputs now, before
outputs velocity
forall x in box(0.09375, 0.90625):
  -1.25 < y["velocity"] + 16 * x["now"] - 8 * x["before"] - 4 < 1.25
