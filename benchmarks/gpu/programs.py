"""Public training programs, unmodified: as they are, with our diff, and with torch.compile put in by hand.

    python benchmarks/gpu/programs.py --checkouts DIR --diffs DIR --out FILE [--only "NAME;NAME"] [--jobs 5]

The first DIR holds the repositories of programs/manifest.toml as `owner+name`, at their commits. Each program is copied
with the data that it needs, and `graphdoctor run --diff` proposes a change there and tries it, for several programs at
once. Then one program after another runs as it is, changed, compiled, and with the diff that an engineer wrote by hand
where programs/by_hand/ has one: in turns, each for some hundred optimizer steps in a process of its own. `step_us` is
the wall time from one optimizer step to the next, with all that the program does between them, and `late_step_us` that
of the second half of the steps, when graphs are captured. FILE gets a line for each program; run again, the command
goes on with what FILE lacks. Without a GPU only the diffs are made and tried.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
MODES = ("default", "reduce-overhead")
STEPS = 400  # of the first optimizer, in each run
RUN_S = 45.0  # after which a run ends with its step


@dataclass(frozen=True)
class Public:
    """A row of the manifest."""

    name: str
    repository: str
    commit: str
    files: list[str]
    folder: str
    script: str
    arguments: tuple[str, ...] = ()
    data: str = ""
    compiled: tuple[tuple[str, str], ...] = ()


def manifest() -> list[Public]:
    rows = tomllib.loads((HERE / "manifest.toml").read_text())["program"]
    return [Public(**row) for row in rows]


def prepared(public: Public, checkouts: Path, into: Path) -> Path:
    """Copy the program and make its data; returns the folder in which it runs."""
    source = checkouts / public.repository.replace("/", "+")
    for name in public.files:
        if (source / name).is_dir():
            shutil.copytree(source / name, into / name, dirs_exist_ok=True)
        else:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, into / name)
    folder = into / public.folder
    if public.data:
        sys.path.insert(0, str(HERE))
        import made_data

        getattr(made_data, public.data)(folder)
    for name in ("results", "images"):  # into which some programs write without making them
        (folder / name).mkdir(exist_ok=True)
    return folder


def proposed(public: Public, folder: Path, budget_s: int, device: str) -> dict[str, Any]:
    """What `graphdoctor run --diff` finds; the diff is in the folder above the program's."""
    diff, report = folder / "graphdoctor.diff", folder / "graphdoctor.json"
    command: list[Any] = [sys.executable, "-m", "graphdoctor", "run", "--isolated", "--stop"]
    command += ["--device", device, "--budget", f"{budget_s}s", "--strategies", "whole"]
    command += ["--diff", diff, "--json", report, public.script, "--", *public.arguments]
    begun = time.monotonic()
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    row: dict[str, Any] = {"graphdoctor_s": round(time.monotonic() - begun, 1)}
    if not report.exists():
        return row | {"failure": ended.stderr.strip().splitlines()[-8:]}
    found = json.loads(report.read_text())
    steps = [
        {
            "at": f"{Path(each['location']['file']).name}:{each['location']['line']}",
            "mode": each["mode"],
            "verdict": (each["report"] or {}).get("verdict", ""),
            "change": each.get("change", ""),
            "no_change": each.get("no_change", ""),
        }
        for each in found["steps"]
    ]
    patch = found["patch"] or {}
    plus, minus = diff_lines(diff.read_text() if diff.exists() else "")
    kept = {k: patch[k] for k in ("status", "tried", "speedup", "is_measured") if k in patch}
    moved = {each.strip() for each in minus}
    return row | {
        "ending": found["ending"],
        "steps": steps,
        "patch": kept,
        "diff_lines": len(plus) + len(minus),
        "new_lines": sum(each.strip() not in moved for each in plus if each.strip()),
    }


def diff_lines(diff: str) -> tuple[list[str], list[str]]:
    """The lines that a diff adds, and those that it takes away; a statement that moves is among both."""
    lines = [each for each in diff.splitlines() if each[:3] not in ("+++", "---")]
    added, removed = ([each[1:] for each in lines if each[:1] == sign] for sign in "+-")
    return added, removed


def file_of(public: Public) -> str:
    """The name of the program's diff."""
    return f"{public.name.replace(', ', '_').replace(' ', '_')}.diff"


def changed_files(diff: Path, folder: Path) -> dict[str, str]:
    """The text of the program's files with the diff applied, which leaves the folder as it was."""
    if not diff.exists():
        return {}
    names = [line[6:] for line in diff.read_text().splitlines() if line.startswith("+++ b/")]
    base = next(each for each in (folder, *folder.parents) if (each / names[0]).exists())
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            Path(temporary, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(base / name, Path(temporary, name))
        subprocess.run(["git", "apply", diff], cwd=temporary, check=True)
        return {str(base / name): Path(temporary, name).read_text() for name in names}


def compiled_files(public: Public, folder: Path, mode: str) -> dict[str, str]:
    """The program's script with lines below the first assignments of what is compiled."""
    file = (folder / public.script).resolve()
    lines = file.read_text().split("\n")
    places: list[tuple[int, str]] = []
    for name, statement in public.compiled:
        ends = [
            (node.end_lineno or node.lineno, node.col_offset)
            for node in ast.walk(ast.parse("\n".join(lines)))
            if isinstance(node, ast.Assign)
            and any(ast.unparse(target) == name for target in node.targets)
            and isinstance(node.value, ast.Call)
        ]
        line, column = max(ends)
        places.append((line, " " * column + statement.format(mode=mode)))
    for line, statement in sorted(places, reverse=True):
        lines.insert(line, statement)
    return {str(file): "\n".join(lines)}


def timed(public: Public, folder: Path, turns: int, only: list[str]) -> dict[str, Any]:
    """Microseconds for a step of each way (of those in `only`, if it has any), in turns, and how a way failed."""
    from graphdoctor.strategies.patch.rerun import Task, reruns
    from graphdoctor.target.program.launch import Program

    program = Program(public.script, public.arguments)
    ways: dict[str, dict[str, str]] = {"eager": {}}
    if changed := changed_files(folder / "graphdoctor.diff", folder):
        ways["graphdoctor"] = changed
    if changed := changed_files(HERE / "by_hand" / file_of(public), folder):
        ways["by hand"] = changed
    if public.compiled:
        ways |= {f"compile, {mode}": compiled_files(public, folder, mode) for mode in MODES}
    ways = {way: ways[way] for way in ways if way in only or not only}
    found: dict[str, Any] = {way: {"runs_us": [], "late_us": []} for way in ways}
    with reruns(3 * RUN_S) as run:
        for _ in range(turns):
            for way, sources in ways.items():
                if "failure" in found[way]:
                    continue
                task = Task(program, str(folder), "cuda", "h100", STEPS, RUN_S, sources)
                made = run(task)
                found[way] |= {"steps": made.steps, "replays": made.replays}
                if made.mostly_eager:
                    found[way]["fallbacks"] = {
                        c.reason: c.eager for c in made.mostly_eager.values()
                    }
                if made.step_us is None:
                    found[way]["failure"] = made.failure or "too few steps in its time"
                else:
                    found[way]["runs_us"].append(round(made.step_us, 1))
                if made.late_step_us is not None:
                    found[way]["late_us"].append(round(made.late_step_us, 1))
    for each in found.values():
        if each["runs_us"]:
            each["step_us"] = statistics.median(each["runs_us"])
        if each["late_us"]:
            each["late_step_us"] = statistics.median(each["late_us"])
    return found


def measured(public: Public, options: argparse.Namespace) -> dict[str, Any]:
    """The diff of a program, or where the folder of diffs has been filled by an earlier call, its times."""
    kept = options.diffs.resolve() / file_of(public)
    with tempfile.TemporaryDirectory() as temporary:
        folder = prepared(public, options.checkouts.resolve(), Path(temporary).resolve())
        diff = folder / "graphdoctor.diff"
        if public.folder == ".":  # the program's own packages
            os.environ["PYTHONPATH"] += f"{os.pathsep}{folder}"
        if options.times:
            if kept.exists():
                shutil.copy(kept, diff)
            only = options.ways.split(";") if options.ways else []
            return {"ways": timed(public, folder, options.turns, only)}
        row = {"program": public.name, "repository": public.repository, "commit": public.commit}
        row |= proposed(public, folder, options.strategy_s, options.device)
        if diff.exists():
            shutil.copy(diff, kept)
        return row


def about(device: str) -> dict[str, Any]:
    code = (
        "import json, platform, torch; print(json.dumps({'gpu': torch.cuda.get_device_name() if"
        " torch.cuda.is_available() else 'none', 'torch': torch.__version__, 'python': platform.python_version()}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {**json.loads(found.stdout), "device": device, "date": time.strftime("%Y-%m-%d")}


def in_a_process(
    public: Public, options: argparse.Namespace, ends_at: float, *more: str
) -> dict[str, Any] | None:
    """What one program gives in a process group of its own; None where too little time is left for it."""
    left_s = ends_at - time.monotonic()
    if left_s < 60:
        return None
    paths = [str(ROOT), str(HERE / "stubs"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(
        [sys.executable, __file__, *sys.argv[1:], "--one", public.name, *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=min(left_s, options.limit_s))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        if left_s < options.limit_s:
            return None  # it had less time than others have
        return {"program": public.name, "failure": [f"stopped after {options.limit_s:.0f} s"]}
    if process.returncode:
        return {"program": public.name, "failure": err.strip().splitlines()[-8:]}
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--diffs", type=Path, required=True, help="folder for the diffs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of programs, with semicolons")
    parser.add_argument("--device", default="cuda", help="cuda, or emulated")
    parser.add_argument("--jobs", type=int, default=1, help="diffs made at once")
    parser.add_argument("--turns", type=int, default=2, help="runs of each way")
    parser.add_argument("--ways", default="", help="names of ways to time, with semicolons")
    parser.add_argument("--strategy-s", type=int, default=60, help="--budget of graphdoctor run")
    parser.add_argument("--limit-s", type=float, default=300, help="for one program")
    parser.add_argument("--budget-s", type=float, default=1e9, help="for all")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    programs = manifest()
    if options.one:
        print(json.dumps(measured(next(p for p in programs if p.name == options.one), options)))
        return
    ends_at = time.monotonic() + options.budget_s
    options.diffs.mkdir(parents=True, exist_ok=True)
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    head, *rows = [json.loads(line) for line in lines] or [about(options.device)]
    found = {row["program"]: row for row in rows}
    wanted = options.only.split(";") if options.only else [each.name for each in programs]

    def keep(public: Public, row: dict[str, Any] | None) -> None:
        if row is None:
            return
        found[public.name] = found.get(public.name, {}) | row
        kept = [found[each.name] for each in programs if each.name in found]
        options.out.write_text("".join(json.dumps(each) + "\n" for each in (head, *kept)))
        said = row.get("failure") or row.get("patch")
        ways = {k: v.get("step_us", v.get("failure")) for k, v in row.get("ways", {}).items()}
        print(public.name, said or "", ways or "", flush=True)

    without_diff = [each for each in programs if each.name in wanted and each.name not in found]
    with ThreadPoolExecutor(options.jobs) as pool:
        made = pool.map(lambda each: in_a_process(each, options, ends_at), without_diff)
        for public, row in zip(without_diff, made, strict=True):
            keep(public, row)
    for public in programs if options.device == "cuda" else ():
        row = found.get(public.name)
        if row and public.name in wanted and not row.keys() & {"ways", "failure"}:
            keep(public, in_a_process(public, options, ends_at, "--times"))


if __name__ == "__main__":
    main()
