type Input = Tensor Real [2]
type Output = Tensor Real [3]

@network
f : Input -> Output

region : Input -> Input -> Bool
region x x2 =
  (x ! 0 >= 0.0) and
  (x ! 0 <= 1.0) and
  (x ! 1 >= 0.0) and
  (x ! 1 <= 1.0) and
  (x2 ! 0 >= 0.0) and
  (x2 ! 0 <= 1.0) and
  (x2 ! 1 >= 0.0) and
  (x2 ! 1 <= 1.0)

violated : Input -> Input -> Bool
violated x x2 =
  (((x ! 1) + (-1.0) * (x2 ! 1) >= 0.0) and ((-1.0) * (x ! 1) + (x2 ! 1) >= 0.0) and ((x ! 0) + (-1.0) * (x2 ! 0) >= (-0.125)) and ((-1.0) * (x ! 0) + (x2 ! 0) >= (-0.125)) and ((-1.0) * (x ! 0) + (x2 ! 0) >= 0.0) and ((f x ! 0) + (-1.0) * (f x2 ! 0) > 0.0))

@property
safe : Bool
safe = forall x x2 . region x x2 => not (violated x x2)
