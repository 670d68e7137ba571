# Vehicle's wind controller, in metres: steer such that the car stays on the road, whatever the wind.
forall x in domain:
  -1.25 < y["velocity"] + 2 * x["now"] - x["before"] < 1.25
