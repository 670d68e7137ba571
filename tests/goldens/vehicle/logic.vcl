qll : DifferentiableTensorLogic
qll =
  { trueElement = -infinity
  , falseElement = infinity
  , pointwiseNegation = \x -> -x
  , pointwiseConjunction = \{dims} x y -> max x y + const (1.0 / 5.0) dims * log (exp (const 5.0 dims * (x - max x y)) + exp (const 5.0 dims * (y - max x y)))
  , pointwiseDisjunction = \{dims} x y -> min x y - const (1.0 / 5.0) dims * log (exp (const 5.0 dims * (min x y - x)) + exp (const 5.0 dims * (min x y - y)))
  , reduceConjunction = \{dims} xs -> const (reduceMax xs) [] + (1.0 / 5.0) * log (reduceAdd (exp (const 5.0 dims * (xs - const (reduceMax xs) dims))))
  , reduceDisjunction = \{dims} xs -> const (reduceMin xs) [] - (1.0 / 5.0) * log (reduceAdd (exp (const 5.0 dims * (const (reduceMin xs) dims - xs))))
  , pointwiseLessThan = \{dims} x y -> x - y
  , pointwiseLessEqualThan = \{dims} x y -> x - y
  , pointwiseGreaterThan = \{dims} x y -> y - x
  , pointwiseGreaterEqualThan = \{dims} x y -> y - x
  , pointwiseEqual = \{dims} x y -> max (x - y) (y - x) + const (1.0 / 5.0) dims * log (exp (const 5.0 dims * ((x - y) - max (x - y) (y - x))) + exp (const 5.0 dims * ((y - x) - max (x - y) (y - x))))
  , pointwiseNotEqual = \{dims} x y -> min (x - y) (y - x) - const (1.0 / 5.0) dims * log (exp (const 5.0 dims * (min (x - y) (y - x) - (x - y))) + exp (const 5.0 dims * (min (x - y) (y - x) - (y - x))))
  }
