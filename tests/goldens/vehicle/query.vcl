type Input = Tensor Real [2]
type Output = Tensor Real [1]

@network
f : Input -> Output

region : Input -> Bool
region x =
  (x ! 0 >= 0.0) and
  (x ! 0 <= 0.5) and
  (x ! 1 >= (-0.25)) and
  (x ! 1 <= 1.0)

violated : Input -> Bool
violated x =
  (((f x ! 0 >= 1.5) and ((x ! 0) + (f x ! 0) >= 0.1)) or (f x ! 0 <= (-3.0)))

@property
safe : Bool
safe = forall x . region x => not (violated x)
