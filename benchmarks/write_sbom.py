"""Write the software bill of materials: what `requirements.lock` pins, as CycloneDX 1.6 JSON.

    python benchmarks/write_sbom.py --out dist/ridgeline.cdx.json

The same lock gives the same file: there is no clock time in it. Licences are those that the
installed packages state; of a package that is not installed there is none.
"""

from __future__ import annotations

import argparse
import json
import re
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from ridgeline.version import __version__

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(
    r"^([\w.-]+)==([^\s;]+)[^\n]*((?:\n +--hash=sha256:[0-9a-f]{64}[ \\]*)+)", re.MULTILINE
)


def bill(lock: str, version: str) -> dict[str, Any]:
    """Return the bill of materials of a lock's text."""
    components = [_component(name, at, hashes) for name, at, hashes in _PIN.findall(lock)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, version + lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "ridgeline",
                "name": "ridgeline",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }


def _component(name: str, version: str, hashes: str) -> dict[str, Any]:
    """Describe one pinned package; the hashes are those of all its files in the index."""
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', name).lower()}@{version}"
    digests = re.findall(r"sha256:([0-9a-f]{64})", hashes)
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "externalReferences": [
            {
                "type": "distribution",
                "url": purl,
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
            }
        ],
    }
    licence = _licence(name, version)
    return made | ({"licenses": [{"license": {"name": licence}}]} if licence else {})


def _licence(name: str, version: str) -> str:
    """Return what the installed package of this version says of its licence."""
    try:
        said = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if said["Version"] != version:
        return ""
    classes = (line.rpartition(" :: ") for line in said.get_all("Classifier") or [])
    named = [last for first, _, last in classes if first.startswith("License")]
    short = (said.get("License") or "").strip()
    return said.get("License-Expression") or " and ".join(named) or short.partition("\n")[0]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    made = bill((ROOT / "requirements.lock").read_text("utf-8"), __version__)
    out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}: {len(made['components'])} packages")


if __name__ == "__main__":
    main()
