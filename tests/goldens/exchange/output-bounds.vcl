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
  ((f x ! 0 < (-10.0)) or (f x ! 0 > 10.0) or (f x ! 1 < (-10.0)) or (f x ! 1 > 10.0) or (f x ! 2 < (-10.0)) or (f x ! 2 > 10.0) or (f x ! 3 < (-10.0)) or (f x ! 3 > 10.0) or (f x ! 4 < (-10.0)) or (f x ! 4 > 10.0) or (f x ! 5 < (-10.0)) or (f x ! 5 > 10.0) or (f x ! 6 < (-10.0)) or (f x ! 6 > 10.0) or (f x ! 7 < (-10.0)) or (f x ! 7 > 10.0) or (f x ! 8 < (-10.0)) or (f x ! 8 > 10.0) or (f x ! 9 < (-10.0)) or (f x ! 9 > 10.0))

@property
safe : Bool
safe = forall x . region x => not (violated x)
