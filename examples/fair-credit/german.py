"""Makes a table of the German credit data as the Fairify study encodes it.

python german.py german.csv     # from $QLL_SHARED/tabular/fairness/german/german.data
"""

import csv
import os
import sys
from pathlib import Path

NAMES = [
    "status", "month", "credit_history", "purpose", "credit_amount", "savings", "employment",
    "investment_as_income_percentage", "personal", "other_debtors", "residence_since", "property",
    "age", "installment_plans", "housing", "number_of_credits", "skill_level", "people_liable_for",
    "telephone", "foreign_worker", "credit",
]  # fmt: skip
# Values that the study joins; every column of codes is then numbered in the order of its names.
JOINED = {
    "status": {"A11": "<200", "A12": "<200", "A13": "200+", "A14": "None"},
    "credit_history": {"A30": "None/Paid", "A31": "None/Paid", "A32": "None/Paid", "A33": "Delay",
                       "A34": "Other"},
    "savings": {"A61": "<500", "A62": "<500", "A63": "500+", "A64": "500+", "A65": "Unknown/None"},
    "employment": {"A71": "Unemployed", "A72": "1-4 years", "A73": "1-4 years", "A74": "4+ years",
                   "A75": "4+ years"},
}  # fmt: skip
WOMEN = {"A92", "A95"}


def rows(source: Path) -> list[dict[str, int]]:
    read = [dict(zip(NAMES, line.split(), strict=True)) for line in source.read_text().splitlines()]
    for row in read:
        for name, values in JOINED.items():
            row[name] = values[row[name]]
        row["age"] = "1" if int(row["age"]) >= 26 else "0"
        row["sex"] = "0" if row.pop("personal") in WOMEN else "1"
        row["credit"] = "1" if row["credit"] == "1" else "0"
    found = []
    codes = {}
    for name in read[0]:
        values = {row[name] for row in read}
        if not all(v.isdigit() for v in values):
            codes[name] = {v: k for k, v in enumerate(sorted(values))}
    for row in read:
        found.append({name: codes[name][v] if name in codes else int(v) for name, v in row.items()})
    return found


def main(out: str) -> None:
    source = Path(os.environ["QLL_SHARED"]) / "tabular" / "fairness" / "german" / "german.data"
    table = rows(source)
    order = [name for name in table[0] if name != "credit"] + ["credit"]
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with Path(out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, order)
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main(sys.argv[1])
