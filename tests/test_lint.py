"""The lint rules that keep code out of files and the network out of the library: they bite."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

BANNED = {
    "torch.load": "import torch\n\nfound = torch.load('f')\n",
    "torch.load, renamed": "from torch import load as read\n\nfound = read('f')\n",
    "pickle": "import pickle\n\nfound = pickle.loads(b'')\n",
    "dill": "import dill\n\nfound = dill.load\n",
    "shelve": "import shelve\n\nfound = shelve.open('f')\n",
    "marshal": "import marshal\n\nfound = marshal.loads(b'')\n",
    "joblib.load": "import joblib\n\nfound = joblib.load('f')\n",
    "numpy.load": "import numpy as np\n\nfound = np.load('f', allow_pickle=True)\n",
    "eval": "found = eval('1')\n",
    "exec": "exec('1')\n",
    "yaml.load": "import yaml\n\nfound = yaml.load('a')\n",
    "os.system": "import os\n\nos.system('ls ' + input())\n",
    "shell=True": "import subprocess\n\nsubprocess.run('ls ' + input(), shell=True)\n",
    "urlopen": "import urllib.request\n\nfound = urllib.request.urlopen('http://a')\n",
    "requests": "import requests\n\nfound = requests.get('http://a', timeout=1)\n",
    "tarfile.extractall": "import tarfile\n\ntarfile.open('f').extractall()\n",
}
SECURITY = ("S1", "S2", "S3", "S4", "S5", "S6", "TID251")


def complaints(code: str) -> set[str]:
    """The rules that a file of the library with this content breaks."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--output-format",
            "json",
            "--no-cache",
            "--config",
            str(ROOT / "pyproject.toml"),
            "--stdin-filename",
            "src/qll/new.py",
            "-",
        ],
        input=code,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return {item["code"] for item in json.loads(done.stdout)}


@pytest.mark.parametrize("name", BANNED)
def test_the_rule_bites(name: str) -> None:
    found = complaints(BANNED[name])
    assert any(code.startswith(SECURITY) for code in found), found


def test_honest_code_passes() -> None:
    assert not complaints('"""A module."""\n\nimport json\n\nfound = json.loads("1")\n')


def test_exceptions_are_few_and_say_why() -> None:
    """Every place of the library that lifts one of these rules."""
    lifted = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "noqa" in line and any(rule in line for rule in ("TID251", "S3", "S6")):
                lifted.setdefault(path.relative_to(ROOT / "src" / "qll").as_posix(), []).append(
                    line
                )
    assert set(lifted) <= {
        "data/download.py",
        "data/npz.py",
        "reports/witnesses.py",
        "audit/expected.py",
    }, lifted
    for line in (line for lines in lifted.values() for line in lines):
        if "np.load" in line:
            assert "allow_pickle=False" in line
