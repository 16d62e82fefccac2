"""Groups of commands in the help, and examples in the help of each command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfe_bench.cli import parsing
from tfe_bench.cli.command import Command
from tfe_bench.cli.parsing import typed_command

GROUPS: Mapping[str, Sequence[str]] = {
    "benchmark": (
        *("sort", "compare", "max", "relu", "softmax", "matmul", "ops", "suite", "report"),
        *("baselines", "infer", "resnet50", "relational", "links", "channel"),
    ),
    "models": ("deploy", "predict", "models", "generate", "train", "provide"),
    "tables": ("table", "query", "align"),
    "cluster": ("certs", "cluster", "worker", "doctor", "submit", "status", "cancel", "audit"),
}

# Examples by command, without the program's name.
EXAMPLES: Mapping[str, Sequence[str]] = {
    "sort": (
        "sort --n 1e6",
        "sort --input salaries.csv --column salary --output r.csv",
    ),
    "compare": ("compare --n 1000",),
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
    "audit": ("audit verify receipts0", "audit show receipts0 --client analyst"),
    "audit verify": ("audit verify receipts0", "audit verify receipts0 receipts1 receipts2"),
    "audit show": ("audit show receipts0 --client analyst", "audit show receipts0 --table calls"),
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
}


def group_commands(registered: Mapping[str, Command]) -> dict[str, list[str]]:
    """Return the names of commands by heading: of the core, and of annexes and other packages.

    Args:
        registered: commands that are not the core's, by name.
    """
    groups = {heading: list(names) for heading, names in GROUPS.items()}
    listed = {name for names in groups.values() for name in names}
    waiting = {name: command for name, command in registered.items() if name not in listed}
    while waiting:  # a command comes after the one that it names
        first = next(iter(waiting))
        name = next((n for n, each in waiting.items() if each.after not in waiting), first)
        command = waiting.pop(name)
        names = groups.setdefault(command.heading, [])
        place = names.index(command.after) + 1 if command.after in names else len(names)
        names.insert(place, name)
    return groups


def format_command_examples(command: str, lines: Sequence[str] | None = None) -> str:
    """Return the examples at the end of a command's help.

    Args:
        command: the words of the command.
        lines: examples of a command that `EXAMPLES` does not list.
    """
    lines = EXAMPLES.get(command, ()) if lines is None else lines
    listed = "".join(f"  {typed_command()} {line}\n" for line in lines)
    return parsing.EXAMPLES + listed if lines else ""
