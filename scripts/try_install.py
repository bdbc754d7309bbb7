"""Install the wheel into an empty environment of each Python and run the smoke test there; print a table.

    python scripts/try_install.py python3.11 python3.12 python3.13

Only binary packages are allowed, so that no compiler is needed, and only the versions in constraints.txt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = ("torch", "nvidia", "triton")  # torch and what its CUDA builds bring along


def build(out: Path) -> tuple[Path, Path]:
    """Build the wheel and the source package."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], check=True, stdout=subprocess.DEVNULL
    )
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def try_python(python: str, wheel: Path, folder: Path) -> str:
    """Return the row of one Python: version, size, seconds, smoke test."""
    venv, home = folder / "venv", folder / "home"
    home.mkdir()
    subprocess.run([python, "-m", "venv", venv], check=True)
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RGAT_DATA", "VIRTUAL_ENV")}
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    start = time.perf_counter()
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", f"{wheel}[rdf,molecules]"], check=True, cwd=home, env=own)
    seconds = time.perf_counter() - start
    (packages,) = venv.glob("lib/python*/site-packages")
    sizes = {path.name: _size(path) for path in packages.iterdir()}
    of_torch = sum(size for name, size in sizes.items() if name.startswith(TORCH))
    own_size = sizes["rgat"]
    shutil.copy(ROOT / "scripts" / "smoke.py", home)
    smoke = subprocess.run([venv / "bin/python", "smoke.py"], cwd=home, env=own, capture_output=True, text=True)
    outcome = smoke.stdout.strip() if smoke.returncode == 0 else f"fails: {smoke.stderr.strip().splitlines()[-1]}"
    version = subprocess.run([venv / "bin/python", "-V"], capture_output=True, text=True).stdout.split()[1]
    megabytes = [f"{size / 1e6:,.1f} MB" for size in (own_size, sum(sizes.values()) - of_torch, of_torch)]
    return f"| {version} | {' | '.join(megabytes)} | {seconds:.0f} s | {outcome} |"


def _size(path: Path) -> int:
    return (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size
    )


def main() -> None:
    """Try each Python that is named on the command line."""
    with tempfile.TemporaryDirectory() as name:
        wheel, source = build(Path(name))
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {source.name}: {source.stat().st_size / 1e6:.1f} MB")
        print("| Python | rgat | with other libraries | torch | installed in | smoke test |")
        print("| --- | --- | --- | --- | --- | --- |")
        for python in sys.argv[1:] or [sys.executable]:
            with tempfile.TemporaryDirectory() as folder:
                print(try_python(python, wheel, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
