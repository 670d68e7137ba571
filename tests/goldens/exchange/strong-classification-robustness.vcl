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
  (f x ! 0 < 0.5108256237659907217363297604606486856937408447265625)

@property
safe : Bool
safe = forall x . region x => not (violated x)
