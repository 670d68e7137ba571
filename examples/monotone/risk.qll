# Of two patients who differ in chest pain, blood pressure and cholesterol alone, the one who has no
# less of any of these has no lower score.
set risks = {"cp", "trestbps", "chol"}
forall x in domain,
       x2 in domain and (forall i in risks: x2[i] >= x[i])
            and (forall i in inputs where i not in risks: x2[i] == x[i]):
  y2[0] >= y[0]
