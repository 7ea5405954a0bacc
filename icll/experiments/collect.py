"""For those who keep the results of this project: `python -m icll.experiments.collect RUNS...`, from its root.

Copies finished runs, scores of learners and analyses into `results/`, without weights, and packs all of `results/` into the
file that the package brings.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from ..files import replacing
from ..training import find_runs
from .results import DETAILS, PACKED, pack, read_folder, write_details

KEPT = ("config.yaml", "metrics.jsonl", "result.json", DETAILS)


def collect(root: Path, results: Path) -> int:
    """Copy what is finished below `root`; returns how many runs."""
    count = 0
    for run in find_runs(root):
        if run.result is None:
            continue
        write_details(run.folder, run.config)
        target = results / "training" / run.folder.name
        target.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (run.folder / name).exists():
                shutil.copyfile(run.folder / name, target / name)
            else:  # that of another run of this name
                (target / name).unlink(missing_ok=True)
        count += 1
    for kind in ("learners", "analysis"):
        for path in sorted(root.glob(f"{kind}/*.json")):
            (results / kind).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, results / kind / path.name)
    return count


def packed_text(results: Path) -> str:
    """What the packed file of a results folder holds."""
    plain = pack(read_folder(results))
    entries = ",\n".join(json.dumps(entry) for entry in plain["entries"])
    rest = "".join(f',\n"{name}": {json.dumps(plain[name])}' for name in ("tokens", "tables"))
    return f'{{"entries": [\n{entries}\n]{rest}}}\n'


def main() -> None:
    results = Path("results")
    for root in sys.argv[1:]:
        print(f"{root}: {collect(Path(root), results)} finished runs")
    with replacing(Path(__file__).parent / PACKED) as (path,):
        path.write_text(packed_text(results), "utf-8")
    print(f"packed {results}: {len(json.loads((Path(__file__).parent / PACKED).read_text('utf-8'))['entries'])} entries")


if __name__ == "__main__":
    main()
