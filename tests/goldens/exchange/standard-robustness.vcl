type Input = Tensor Real [2]
type Output = Tensor Real [10]

@network
f : Input -> Output

region : Input -> Bool
region x =
  (x ! 0 >= 0.375) and
  (x ! 0 <= 0.625) and
  (x ! 1 >= 0.125) and
  (x ! 1 <= 0.375)

violated : Input -> Bool
violated x =
  ((f x ! 0 > 0.625) or (f x ! 0 < (-0.625)) or (f x ! 1 > 1.625) or (f x ! 1 < 0.375) or (f x ! 2 > (-0.75)) or (f x ! 2 < (-2.0)) or (f x ! 3 > 1.75) or (f x ! 3 < 0.5) or (f x ! 4 > (-0.0625)) or (f x ! 4 < (-1.3125)) or (f x ! 5 > 1.3125) or (f x ! 5 < 0.0625) or (f x ! 6 > 0.5) or (f x ! 6 < (-0.75)) or (f x ! 7 > 0.0) or (f x ! 7 < (-1.25)) or (f x ! 8 > 0.9375) or (f x ! 8 < (-0.3125)) or (f x ! 9 > (-0.75)) or (f x ! 9 < (-2.0)))

@property
safe : Bool
safe = forall x . region x => not (violated x)
