"""How long a user waits before anything happens: the import, ``sheafstain --help`` and their like.

    python benchmarks/startup.py [--runs 15]

Each is started in a fresh process, after one that is not counted; the fastest counts, because what else the machine
does only ever adds. The bare interpreter is in every figure and is shown beside them. Exits with 1 over a limit
(design: 0.2 s for the import, 0.3 s for the help), after naming the slowest imports of the help.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from machine import record

LIMITS = {"import sheafstain": 0.2, "sheafstain --help": 0.3}
COMMANDS = {
    "bare interpreter": [sys.executable, "-c", "pass"],
    "import sheafstain": [sys.executable, "-c", "import sheafstain"],
    "sheafstain --version": [sys.executable, "-m", "sheafstain", "--version"],
    "sheafstain --help": [sys.executable, "-m", "sheafstain", "--help"],
    "sheafstain data phantom --help": [sys.executable, "-m", "sheafstain", "data", "phantom", "--help"],
}
# As on a user's machine, where the first start leaves its bytecode for the next.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def start(command: list[str]) -> float:
    before = time.perf_counter()
    subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - before


def slowest_imports(command: list[str], count: int = 12) -> list[tuple[float, str]]:
    """Own time in milliseconds, by module."""
    timed = [command[0], "-X", "importtime", *command[1:]]
    told = subprocess.run(timed, env=ENVIRONMENT, capture_output=True, text=True, check=True).stderr
    lines = (line.removeprefix("import time:").split("|") for line in told.splitlines() if "|" in line)
    return sorted(((int(own) / 1e3, name.strip()) for own, _, name in lines if own.strip().isdigit()), reverse=True)[
        :count
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    rows = []
    for name, command in COMMANDS.items():
        start(command)
        times = sorted(start(command) for _ in range(runs))
        rows.append({"case": name, "fastest_s": times[0], "median_s": times[len(times) // 2], "runs": runs})
    record("startup", rows)
    print("slowest imports of sheafstain --help (own time, ms; timing them costs time too):")
    for milliseconds, module in slowest_imports(COMMANDS["sheafstain --help"]):
        print(f"{milliseconds:8.1f}  {module}")
    late = [
        f"{row['case']} takes {row['fastest_s']:.3f} s" for row in rows if row["fastest_s"] > LIMITS.get(row["case"], 9)
    ]
    sys.exit("; ".join(late) or None)


if __name__ == "__main__":
    main()
