# A pendulum that is held upright, a step of 0.05 seconds at a time:
# angle' = angle + 0.05 rate,  rate' = rate + 0.05 (9.81 sin(angle) - 0.1 rate + push),
# or with lean = rate + 3 angle, and sin(angle) = angle but for at most 0.0045 where |angle| <= 0.3:
# angle' = 0.85 angle + 0.05 lean
# lean'  = 1.145 lean + 0.0555 angle + 0.05 push, but for less than 0.0023 (sine, below).
# The set |angle| <= 0.3, |lean| <= 0.8 is invariant: who is in it is in it after the step.
outputs push
inputs angle, lean
parameter sine: number = 0.0023
parameter strength: number = 8
forall x in box([-0.3, -0.8], [0.3, 0.8]):
  (-0.3 <= 0.85*x["angle"] + 0.05*x["lean"] and 0.85*x["angle"] + 0.05*x["lean"] <= 0.3) and (-0.8 + sine <= 1.145*x["lean"] + 0.0555*x["angle"] + 0.05*y["push"] and 1.145*x["lean"] + 0.0555*x["angle"] + 0.05*y["push"] <= 0.8 - sine) and (-strength <= y["push"] and y["push"] <= strength)
