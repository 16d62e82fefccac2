"""Groups of commands in the help, and examples in the help of each command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfe_bench.cli import parsing
from tfe_bench.cli.parsing import typed_command

GROUPS: Mapping[str, Sequence[str]] = {
    "benchmark": (
        *("sort", "compare", "max", "relu", "softmax", "exp", "matmul", "ops", "suite"),
        *("report", "baselines", "infer", "resnet50", "relational", "links", "channel"),
    ),
    "models": ("deploy", "predict", "models", "generate", "train", "provide"),
    "tables": ("table", "query", "align"),
    "cluster": ("certs", "cluster", "worker", "doctor", "submit", "status", "cancel"),
    "other technologies": ("technologies", "functional", "homomorphic", "storage"),
}

# Examples by command, without the program's name.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "sort": (
        "sort --n 1e6",
        "sort --input salaries.csv --column salary --output r.csv",
    ),
    "compare": ("compare --n 1000", "compare tf-encrypted --source CHECKOUT"),
    "exp": ("exp --n 1000 --method taylor", "exp --study --quick"),
    "matmul": ("matmul --n 1024 --profile lan",),
    "submit": ("submit sort --cluster c.toml --input keys=a.csv#salary",),
    "deploy": ("deploy model.keras --name digits --allow hospital",),
    "predict": ("predict digits --image seven.png", "predict m.keras --input rows.csv"),
    "models": ("models", "models --remove digits"),
    "generate": ("generate gpt2-tiny --tokens 16 --new 4",),
    "train": ("train logistic --dataset loans.csv --label approved",),
    "provide": ("provide loans --csv loans.csv --label approved --for bank",),
    "table": (
        "table put c --input c.csv --for bank --right plan:group",
        "table list",
        "table remove calls",
    ),
    "table put": (
        "table put calls --input calls.csv --type n:int[0,99]",
        "table put c --input c.csv --for bank --right plan:group",
    ),
    "table list": ("table list", "table list --cluster cluster.toml --client bank"),
    "table remove": ("table remove calls",),
    "query": ("query 'select plan, count(*) n from c group by plan'",),
    "align": ("align accounts calls --on phone --label paid --as common",),
    "certs": (
        "certs party --party 0 --out keys",
        "certs show party1.crt",
        "certs all --hosts H:7700,I:7700,J:7700 --out trial",
    ),
    "certs party": ("certs party --party 0 --out keys",),
    "certs client": ("certs client --name analyst --out keys",),
    "certs show": ("certs show party1.crt",),
    "certs renew": ("certs renew party1.crt",),
    "certs all": (
        "certs all --hosts a:7700,b:7700,c:7700 --out trial",
        "certs all --hosts a:1,b:1,c:1 --client ann --out trial",
    ),
    "worker": ("worker --party 0 --cluster cluster.toml",),
    "cluster": ("cluster up", "cluster up --out trial --client ann --client bob"),
    "cluster up": ("cluster up", "cluster up --out trial --client ann --client bob"),
    "doctor": ("doctor", "doctor --cluster cluster.toml --client analyst"),
    "status": ("status --cluster cluster.toml",),
    "cancel": ("cancel 3f2a90c1 --cluster cluster.toml",),
    "ops": ("ops --quick", "ops --only relu,max --profile lan"),
    "suite": ("suite paper --quick --only sort,max",),
    "report": ("report suite-paper",),
    "baselines": ("baselines sort --n 1024",),
    "peers": ("peers sort --n 1024",),
    "infer": ("infer vgg19 --batch 1",),
    "resnet50": ("resnet50 --batch 1",),
    "relational": ("relational list", "relational tpch-q6 --rows 1000"),
    "links": ("links --profile wan",),
    "channel": ("channel --megabytes 64",),
    "technologies": ("technologies --quick --job J1",),
    "functional": ("functional --quick",),
    "homomorphic": ("homomorphic --quick",),
    "storage": ("storage --device csd --devices 4",),
}


def format_command_examples(command: str, lines: Sequence[str] | None = None) -> str:
    """Return the examples at the end of a command's help.

    Args:
        command: the words of the command.
        lines: examples of a command that `EXAMPLES` does not list.
    """
    lines = EXAMPLES[command] if lines is None else lines
    return parsing.EXAMPLES + "".join(f"  {typed_command()} {line}\n" for line in lines)
