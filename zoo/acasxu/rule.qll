# ACAS Xu, properties 1 to 4, in the units of the published networks (outputs are costs: the least
# is the advice). For an intruder far away, slow, where we are fast: the cost of "clear of conflict"
# is at most 1500 (property 1), and "clear of conflict" is not the worst advice (property 2). For one
# near and straight ahead that comes towards us (property 3), or flies away slower than we do
# (property 4), "clear of conflict" is not the advice. Property 4 is published for a heading of
# exactly 0; here it is for every heading within `parallel` of it (0.001 is a third of a degree).
inputs distance, bearing, heading, own, intruder
outputs clear, "weak left", "weak right", "strong left", "strong right"
parameter parallel: number = 0.001
define far = x["distance"] >= 0.6 and x["own"] >= 0.45 and x["intruder"] <= -0.45
define ahead = (-0.303531156 <= x["distance"] and x["distance"] <= -0.298552812) and (-0.009549297 <= x["bearing"] and x["bearing"] <= 0.009549297)
define comes = x["heading"] >= 0.493380324 and x["own"] >= 0.3 and x["intruder"] >= 0.3
define leaves = (-parallel <= x["heading"] and x["heading"] <= parallel) and x["own"] >= 0.318181818 and (0.083333333 <= x["intruder"] and x["intruder"] <= 0.166666667)
forall x in box([-0.328422877, -0.5, -0.5, -0.5, -0.5], [0.679857769, 0.5, 0.5, 0.5, 0.5]):
  (far -> y["clear"] <= 3.991125645861615) and (far -> exists i in outputs where i != "clear": y["clear"] <= y[i]) and (ahead and comes -> exists i in outputs where i != "clear": y[i] <= y["clear"]) and (ahead and leaves -> exists i in outputs where i != "clear": y[i] <= y["clear"])
