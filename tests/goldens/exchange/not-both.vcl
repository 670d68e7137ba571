type Input = Tensor Real [2]
type Output = Tensor Real [6]

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
  (((f x ! 0 > 0.0) and (f x ! 5 > 0.0)) or ((f x ! 1 > 0.0) and (f x ! 4 > 0.0)) or ((f x ! 2 > 0.0) and (f x ! 3 > 0.0)))

@property
safe : Bool
safe = forall x . region x => not (violated x)
