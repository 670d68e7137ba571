# Fair credit: no two applicants who differ in their sex alone get different decisions.
# The decision is the sign of the one output. All inputs are whole numbers; the amount of the credit
# can be restricted to a part of its range: --set least=100 --set most=199.
inputs status, month, credit_history, purpose, credit_amount, savings, employment,
       investment_as_income_percentage, other_debtors, residence_since, property, age,
       installment_plans, housing, number_of_credits, skill_level, people_liable_for, telephone,
       foreign_worker, sex
outputs credit
parameter least: number = 0
parameter most: number = 20000
forall x in box([0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0],
                [2, 80, 2, 9, 20000, 2, 2, 4, 2, 4, 2, 1, 2, 2, 4, 3, 2, 1, 1, 1])
            and integer(x) and least <= x["credit_amount"] <= most,
       x2 in integer(x2) and 0 <= x2["sex"] <= 1
            and (forall i in inputs where i != "sex": x2[i] == x[i]):
  y["credit"] > 0 -> y2["credit"] >= 0
