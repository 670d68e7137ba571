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
  (((f x ! 0) + (-1.0) * (f x ! 2) > 0.625) or ((f x ! 0) + (-1.0) * (f x ! 3) > 0.625) or ((f x ! 0) + (-1.0) * (f x ! 4) > 0.625) or ((f x ! 0) + (-1.0) * (f x ! 6) > 0.625) or ((-1.0) * (f x ! 0) + (f x ! 2) > 0.625) or ((f x ! 2) + (-1.0) * (f x ! 3) > 0.625) or ((f x ! 2) + (-1.0) * (f x ! 4) > 0.625) or ((f x ! 2) + (-1.0) * (f x ! 6) > 0.625) or ((-1.0) * (f x ! 0) + (f x ! 3) > 0.625) or ((-1.0) * (f x ! 2) + (f x ! 3) > 0.625) or ((f x ! 3) + (-1.0) * (f x ! 4) > 0.625) or ((f x ! 3) + (-1.0) * (f x ! 6) > 0.625) or ((-1.0) * (f x ! 0) + (f x ! 4) > 0.625) or ((-1.0) * (f x ! 2) + (f x ! 4) > 0.625) or ((-1.0) * (f x ! 3) + (f x ! 4) > 0.625) or ((f x ! 4) + (-1.0) * (f x ! 6) > 0.625) or ((-1.0) * (f x ! 0) + (f x ! 6) > 0.625) or ((-1.0) * (f x ! 2) + (f x ! 6) > 0.625) or ((-1.0) * (f x ! 3) + (f x ! 6) > 0.625) or ((-1.0) * (f x ! 4) + (f x ! 6) > 0.625))

@property
safe : Bool
safe = forall x . region x => not (violated x)
