"""Read every launch file of a folder: what is trained and how, or why a file is refused.

Run as ``python benchmarks/read_launch_files.py FOLDER [WORD ...]``; with words, only files whose
names have one of them, and then with all that was not understood.
"""

import sys
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.study.launch import LaunchJob, launch_choices, read_launch


def lines(path: Path, long: bool) -> list[str]:
    """Return what is to be said of a file."""
    try:
        choices = launch_choices(path)
    except RidgelineError as error:
        return [f"  refused: {error.message}"]
    if not choices:
        return [said(path, {}, long)]
    return [
        f"  {len(choices)} jobs",
        *(f"  {each}:\n{said(path, dict([each.split('=', 1)]), long)}" for each in choices),
    ]


def said(path: Path, set_: dict[str, str], long: bool) -> str:
    try:
        job = read_launch(path, set_=set_)
    except RidgelineError as error:
        place = f"line {error.line}: " if getattr(error, "line", None) else ""
        field = f"{error.field}: " if getattr(error, "field", None) else ""
        return f"  refused: {place}{field}{getattr(error, 'message', error)}"
    return shown(job, long)


def shown(job: LaunchJob, long: bool) -> str:
    text = [
        f"  {job.framework}: {job.model} {dict(job.model_fields) or ''}",
        f"    plan {dict(job.plan)}",
        f"    software {job.software} {dict(job.software_settings)}",
        f"    devices {job.devices} {job.device or ''}, {len(job.settings)} settings,"
        f" {len(job.unread)} not understood: {', '.join(s.name for s in job.unread)[:300]}",
    ]
    if long:
        text += [f"    note: {note}" for note in job.notes]
        text += [f"    {s.line}: {s.name} = {s.value[:60]} -> {s.became}" for s in job.settings]
    return "\n".join(text)


def main() -> int:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    for path in sorted(folder.iterdir()):
        if path.suffix in {".md", ".csv"} or not any(w in path.name for w in words or [""]):
            continue
        print(path.name)
        print("\n".join(lines(path, bool(words))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
