"""Makes wind.csv and pendulum.csv: what two drivers did, neither of whom knows the rule.

Run it again to get the same files: python tables.py
"""

from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def write(name: str, header: str, rows: np.ndarray) -> None:
    lines = [header, *(",".join(f"{v:.4f}" for v in row) for row in rows)]
    (HERE / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    rng = np.random.default_rng(0)
    # A car in a cross-wind: where it was seen, now and before; how fast it is steered back. This
    # driver never steers faster than 5 metres a second, however far off the middle the car is.
    seen = rng.uniform(-3.25, 3.25, (300, 2))
    steer = np.clip(seen[:, 1] - 2 * seen[:, 0], -5, 5) + rng.normal(0, 0.2, 300)
    write("wind.csv", "now,before,velocity", np.c_[seen, steer])
    # A pendulum that is held upright: its angle, its lean (rate + 3 angle), and the acceleration by
    # a hand that is not strong enough at the edge.
    angle, lean = rng.uniform(-0.3, 0.3, 300), rng.uniform(-0.8, 0.8, 300)
    push = np.clip(-4 * lean, -2, 2) + rng.normal(0, 0.1, 300)
    write("pendulum.csv", "angle,lean,push", np.c_[angle, lean, push])


if __name__ == "__main__":
    main()
