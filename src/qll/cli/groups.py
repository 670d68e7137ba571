"""``qll --help`` by what one wants to do, with a line for each command that fits a terminal."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from qll.cli.pipes import Piped

GROUPS = {
    "From a rule to a network that obeys it": {
        "demo": "one to two minutes: without the rule, with it, and the proof",
        "train": "train a network on a rule",
        "cycle": "train and prove in turn until the rule holds",
        "repair": "mend a network that violates a rule",
        "tune": "search for the best trade-offs of accuracy and proofs",
    },
    "Look at a rule, a network, your data": {
        "show": "print a rule, or list the shipped ones",
        "data": "what a table is understood to be; every cell is checked",
        "check": "look before any work: does the rule fit network and data?",
        "doctor": "what is installed here, and whether it works",
        "lab": "a page: drag epsilon, watch bounds, attack and verdict",
    },
    "Find violations, prove that there are none": {
        "attack": "search for points that violate a rule",
        "verify": "prove that there are none, or show one",
        "evaluate": "accuracy, random points, attacks and proofs of a run",
        "explain": "what was proved, on what it rests, what a witness moved",
    },
    "Evidence and exchange": {
        "audit": "check certificates without the prover",
        "zoo": "proved networks: list them, check their proofs, add one",
        "export": "write a rule or query for other verifiers",
        "supports": "what the verifier can do, as the VNN-LIB standard asks",
    },
    "The paper": {
        "reproduce": "train, evaluate and prove every run of a grid",
        "record": "keep a record of a few kB for every finished run",
        "report": "tables and one page from finished runs",
        "figures": "draw the connectives of every logic",
        "laws": "which laws each logic obeys, computed",
    },
}
CLOSING = "qll COMMAND --help says more, with an example. First time here: qll demo"


class GroupedCommands(Piped, TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(len(name) for names in GROUPS.values() for name in names)
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), said) for name, said in names.items()])
        formatter.write_paragraph()
        formatter.write_text(CLOSING)
