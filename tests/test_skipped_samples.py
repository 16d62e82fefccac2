"""Run the samples that docs.samples skips because they need hosts and files, on three hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cluster.conftest import Hosts, environment
from tests.pages import import_page

samples = import_page("samples")
pytestmark = pytest.mark.slow
CLIENTS = ("analyst", "bank", "telco", "owner", "hospital", "alice", "bob")
# Samples with these reasons run here; all others run nowhere, for the stated reason.
REASONS = (
    *("takes three hosts", "two owners' files", "takes a table of customers"),
    "it starts three workers",
)
# Lines and blocks that do not run here, with the reason.
LEFT_OUT = {
    "python -m tfe_bench worker": "serves until it is stopped; tests/cluster/test_hosts.py",
    "python -m tfe_bench cancel": "there is no such job; tests/cluster/test_client_jobs.py",
    "python -m tfe_bench train network-a": "takes MNIST",
    "private.fit(cluster, columns_of": "a line of a longer program; tests/models/test_aligned.py",
}
PAGES = ("cluster", "tables", "training", "service", "recurrent")
# Preparation that a page assumes, by the start of its block.
_BEFORE = {
    "python -m tfe_bench table put accounts --input accounts.csv --unique phone \\\n"
    '    --type "phone:int[0,9999999]" "income:decimal': (
        "python -m tfe_bench table remove accounts --cluster cluster.toml --client bank\n"
        "python -m tfe_bench table remove calls --cluster cluster.toml --client telco\n"
        "cp numbers.parquet calls.parquet\n"
    ),
    "python -m tfe_bench table put accounts --input accounts.csv --unique phone --hashed-by": (
        "python -m tfe_bench table remove accounts --cluster cluster.toml --client bank\n"
        "python -m tfe_bench table remove calls --cluster cluster.toml --client telco\n"
        "cp phones.csv accounts.csv\n"
    ),
    "python -m tfe_bench provide telco": "cp incomes.csv accounts.csv\n",
}
_PRELUDE = """
import numpy as np
public = np.random.default_rng(0).uniform(0, 1, (4, 28, 28, 1)).astype("float32")
images = public[:1]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Provide the shared folder of three hosts, with the files that the pages mention."""
    hosts = Hosts(tmp_path_factory.mktemp("pages") / "trial", CLIENTS)
    try:
        _write(hosts.folder)
        hosts.ensure()
        yield hosts.folder
    finally:
        hosts.close()


def _write(folder: Path) -> None:
    import keras
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rng = np.random.default_rng(1)
    n = 1500
    phones = rng.permutation(9_000_000)[:n]
    income, owed = rng.integers(0, 1_000_000, n), rng.integers(0, 2, n)

    def table(file: str, /, **columns: object) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        (folder / file).write_text("\n".join(lines) + "\n")

    words = ["false", "true"]
    table("salaries.csv", name=["ann", "bob", "cy"], salary=[3, 1, 2], bonus=[1, 2, 3])
    table("accounts.csv", phone=phones, income=income, defaulted=[words[i] for i in owed])
    table("phones.csv", phone=phones)
    minutes, plan = rng.integers(0, 100_000, n), rng.choice(["basic", "plus", "max"], n)
    for file, key in (("calls.parquet", "phone"), ("numbers.parquet", "number")):
        columns = {key: phones, "plan": plan, "minutes": minutes}
        pq.write_table(pa.table(columns), folder / file)
    table("calls.csv", phone=phones[:300])
    table(
        "visits.csv",
        patient=rng.integers(0, 300, n),
        ward=rng.choice(["heart", "lung", "other"], n),
        days=rng.integers(0, 61, n),
        night=[words[i] for i in rng.integers(0, 2, n)],
    )
    x = rng.normal(0, 1, (n, 3)).round(4)
    y = (x.sum(1) > 0).astype(int)
    for name, part in (("alice", x[:750]), ("bob", x[750:]), ("loans", x), ("new", x[:20])):
        more = {} if name == "new" else {"approved": y[: len(part)]}
        own = {"id": range(len(part))} if name in ("loans", "new") else {}
        table(f"{name}.csv", **own, a=part[:, 0], b=part[:, 1], c=part[:, 2], **more)
    table("telco.csv", a=x[:, 0], b=x[:, 1])
    table("labels.csv", default=y)
    table("incomes.csv", income=income, age=rng.integers(18, 90, n))
    layers = [keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    keras.Sequential(layers).save(folder / "model.keras")
    np.save(folder / "public.npy", rng.uniform(0, 1, (4, 28, 28, 1)).astype("float32"))
    Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(folder / "seven.png")
    for party in range(1):
        (folder / "worker.toml").write_bytes((folder / f"worker{party}.toml").read_bytes())


def _left_out(text: str) -> bool:
    return any(text.startswith(begin) for begin in LEFT_OUT)


def _run(words: list[str], folder: Path, where: str) -> None:
    done = subprocess.run(
        words,
        cwd=folder,
        # (a reader of the page has the key of one client)
        env=environment(PYTHONPATH=str(samples.ROOT), TFE_BENCH_CLIENT="analyst"),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{where}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("name", PAGES)
def test_skipped_samples_run_on_three_hosts(name: str, folder: Path) -> None:
    page = samples.ROOT / "docs" / f"{name}.md"
    for block in samples.parse_blocks(page.read_text()):
        if block.kind != "skip" or block.rest not in REASONS:
            continue
        where = f"{page.name}, line {block.line}"
        if block.language == "python":
            if _left_out(block.text) or any(line in block.text for line in LEFT_OUT):
                continue
            _run([sys.executable, "-c", _PRELUDE + block.text], folder, where)
        elif block.language == "sh":
            before = next((v for k, v in _BEFORE.items() if block.text.startswith(k)), "")
            lines = re.split(r"(?<!\\)\n", block.text)
            text = "\n".join(line for line in lines if not _left_out(line))
            text = text.replace("submit PROGRAM", "submit sort")
            text = text.replace("python -m", f"{sys.executable} -m")
            before = before.replace("python -m", f"{sys.executable} -m")
            _run(["bash", "-euc", before + text], folder, where)


def test_what_is_left_out_still_stands_on_a_page() -> None:
    text = "".join(p.read_text() for p in (samples.ROOT / "docs").glob("*.md"))
    assert all(begin in text for begin in (*LEFT_OUT, *_BEFORE))
    reasons = {b.rest for p in samples.PAGES for b in samples.parse_blocks(p.read_text())}
    assert set(REASONS) <= reasons
