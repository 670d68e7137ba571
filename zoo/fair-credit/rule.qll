# Fair credit: no two applicants who differ in sex and age group alone get different decisions. The
# decision is the sign of the one output. All inputs are whole numbers.
inputs status, month, credit_history, purpose, credit_amount, savings, employment, investment_as_income_percentage, other_debtors, residence_since, property, age, installment_plans, housing, number_of_credits, skill_level, people_liable_for, telephone, foreign_worker, sex
outputs credit
set ignored = {sex, age}
forall x in box([0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0], [2, 80, 2, 9, 20000, 2, 2, 4, 2, 4, 2, 1, 2, 2, 4, 3, 2, 1, 1, 1]) and integer(x), x2 in integer(x2) and (forall i in ignored: 0 <= x2[i] and x2[i] <= 1) and (forall i in inputs where i not in ignored: x2[i] == x[i]):
  y["credit"] > 0 -> y2["credit"] >= 0
