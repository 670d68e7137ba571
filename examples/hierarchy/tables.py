"""Makes animals.csv: three measurements, and four labels of which some imply others.

Run it again to get the same file: python tables.py
"""

from pathlib import Path

import numpy as np


def main() -> None:
    rng = np.random.default_rng(0)
    legs, size, voice = rng.uniform(0, 1, (3, 300))
    noise = rng.normal(0, 0.08, (4, 300))
    animal = legs + 0.3 * size + noise[0] > 0.5
    # Each label is seen on its own, with noise, and is only written down with what it implies.
    pet = animal & (0.7 * voice + 0.3 * legs + noise[1] > 0.45)
    dog = pet & (size + noise[2] > 0.45)
    cat = pet & ~dog & (size + noise[3] < 0.4)
    columns = np.c_[legs, size, voice].round(4).tolist()
    labels = np.c_[animal, pet, dog, cat].astype(int).tolist()
    lines = ["legs,size,voice,animal,pet,dog,cat"]
    lines += [",".join(map(str, [*x, *y])) for x, y in zip(columns, labels, strict=True)]
    (Path(__file__).parent / "animals.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
