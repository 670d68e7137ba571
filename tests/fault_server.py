"""Runs qll commands in forks of a process that has imported everything, and kills them.

A line of JSON on the input: {"arguments": [...], "kill_at": n or null, "seconds": s or null}. The
command dies (SIGKILL) at its n-th access to a file, or after s seconds, or runs to its end. The
answer: {"code": exit code or -9, "accesses": n, "seconds": s}.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from typing import Any

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate")


def import_everything() -> None:
    import qll.attacks.compiled
    import qll.cli.main
    import qll.cycle.loop
    import qll.data.dice_rendered
    import qll.grid.task
    import qll.training.loop
    import qll.verify.api
    import qll.verify.backends.bab
    import qll.verify.journal  # noqa: F401

    for name in ("onnx", "onnxruntime", "safetensors.torch", "scipy.sparse", "torch._dynamo"):
        importlib.import_module(name)


def run_here(arguments: list[str], place: str, kill_at: int | None, report: int) -> None:
    """The command, in this process; it does not come back."""
    from qll.cli.main import run

    count = 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        if event in EVENTS and place in str(given[0]):
            count += 1
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    sys.argv = ["qll", *arguments]
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(report, 1)
    code = 0
    try:
        run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    os.write(2, f"\n{count}\n".encode())
    os._exit(code)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    log = os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    child = os.fork()
    if child == 0:
        os.dup2(log, 2)
        run_here(request["arguments"], request["place"], request["kill_at"], log)
    os.close(log)
    end = None if request["seconds"] is None else began + request["seconds"]
    while True:
        done, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if done:
            break
        if end is not None and time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = None
        time.sleep(0.002)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}


def main() -> None:
    import_everything()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
