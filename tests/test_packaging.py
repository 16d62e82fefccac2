"""The package imports the same from any folder, and layers import only lower ones."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import import_page
from tests.paths import ROOT

PICTURES = import_page("pictures")
# A text that is the name of a module, wherever it is used.
_MODULE = re.compile(r"tfe_bench(\.\w+)+(:\w+)?")


def _run_code(
    code: str, cwd: Path, python: str = sys.executable, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code],
        cwd=cwd,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


_IMPORT_ALL = """
import tfe_bench, sys
import tfe_bench.protocols.order.sort, tfe_bench.models, tfe_bench.cluster.launch
import tfe_bench.benchmarks.records
assert "tensorflow" not in sys.modules, "a client needs no TensorFlow"
for name in ("protocols", "models", "cluster", "benchmarks"):
    assert name not in sys.modules, name
print(tfe_bench.__version__)
"""


def test_a_users_own_packages_of_the_same_names_do_not_matter(tmp_path: Path) -> None:
    for name in ("protocols", "models", "cluster", "benchmarks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "models.py").write_text("raise RuntimeError('the wrong one')")
    done = _run_code(_IMPORT_ALL, tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr


def test_a_checkout_without_links_works(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    ignore = shutil.ignore_patterns(".git", "tests", "*.so", "__pycache__", "build")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    for name in ("protocols", "models", "cluster", "benchmarks"):
        link = copy / "tfe_bench" / name
        assert link.is_symlink()
        link.unlink()
    done = _run_code(_IMPORT_ALL, copy)
    assert done.returncode == 0, done.stderr


def test_a_missing_library_is_explained_in_words(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    ignore = shutil.ignore_patterns(".git", "tests", "*.so", "__pycache__", "build")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    code = (
        "from tfe_bench.protocols.session import ops\n"
        "from tfe_bench.errors import OpsMissing\n"
        "try: ops.read_built_tensorflow_version(ops.compiled_ops_library_path())\n"
        "except OpsMissing as e: print(e); assert e.exit_code == 50\n"
    )
    done = _run_code(code, copy)
    assert "pip install" in done.stdout, done.stderr
    library = ROOT / "tfe_bench" / "_ops.so"
    if not library.exists():  # installed elsewhere
        import tfe_bench

        library = Path(tfe_bench.__file__).parent / "_ops.so"
    blob = library.read_bytes()
    marker = b"tfe_bench ops built for TensorFlow 2.21."
    assert marker in blob
    (copy / "tfe_bench" / "_ops.so").write_bytes(blob.replace(marker, marker[:-5] + b"9.99."))
    code = (
        "from tfe_bench.protocols.session import ops\n"
        "from tfe_bench.errors import OpsMissing\n"
        "try: ops.native()\n"
        "except OpsMissing as e: print(e)\n"
    )
    done = _run_code(code, copy)
    assert "9.99" in done.stdout and "2.21" in done.stdout, done.stderr


def _imported_modules(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, also in functions and as texts.

    Texts name modules for `import_module` and for entry points.
    """
    yield from PICTURES.imported_names(path)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and _MODULE.fullmatch(str(node.value)):
            yield str(node.value).partition(":")[0]


def test_imports_go_only_downwards() -> None:
    layers = list(PICTURES.LAYERS)
    wrong = []
    for module, path in PICTURES.list_modules().items():
        importer = PICTURES.find_layer(module)
        for name in _imported_modules(path) if importer else ():
            imported = PICTURES.find_layer(name)
            if imported and layers.index(imported) < layers.index(importer):
                wrong.append(f"{module} imports {name}")
    assert not wrong, wrong


def test_no_client_module_imports_a_program() -> None:
    """A client and the workers share a feature's requests; programs are the workers' alone."""
    program = re.compile(r"tfe_bench\.(models\.\w+|arrays|queries)\.programs?(\.|$)")
    wrong = [
        f"{module} imports {name}"
        for module, path in PICTURES.list_modules().items()
        if not program.match(module)
        for name in _imported_modules(path)
        if program.match(name)
    ]
    assert not wrong, wrong


def test_every_package_is_a_layer() -> None:
    """Only modules directly in tfe_bench, such as errors, are outside all layers."""
    modules = PICTURES.list_modules()
    outside = {name for name in modules if PICTURES.find_layer(name) is None}
    assert {name for name in outside if name.count(".") > 1} == set()
    assert {name.split(".")[1] for name in set(modules) - outside} == {
        layer.split(".")[0] for layer in PICTURES.LAYERS
    }


def test_annexes_are_leaves() -> None:
    """No module outside an annex imports or names it, the main module included."""
    annexes = [name for name, about in PICTURES.LAYERS.items() if about.startswith("annex")]
    wrong = []
    for module, path in PICTURES.list_modules().items():
        importer = PICTURES.find_layer(module)
        for name in _imported_modules(path):
            imported = PICTURES.find_layer(name)
            if imported in annexes and imported != importer and importer != annexes[0]:
                wrong.append(f"{module} imports {name}")
    assert not wrong, wrong
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    registered = {
        PICTURES.find_layer(value.partition(":")[0])
        for group in ("tfe_bench.commands", "tfe_bench.report_sections")
        for value in entry_points[group].values()
    }
    assert registered == set(annexes[:3])


def _named_modules(path: Path, modules: set[str]) -> Iterator[str]:
    """Yield the modules that a file imports or names as texts.

    Imports in functions and for type checkers count, too.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.ImportFrom):
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                if known := {name, str(node.module)} & modules:
                    yield max(known, key=len)  # name of a module, or a module of a package
        elif isinstance(node, ast.Constant) and _MODULE.fullmatch(str(node.value)):
            yield from {str(node.value).partition(":")[0]} & modules
        else:
            yield from _discovered_modules(node, path, modules)


def _discovered_modules(node: ast.AST, path: Path, modules: set[str]) -> Iterator[str]:
    """Yield the modules of a package whose `__path__` is passed to discovery."""
    calls_discovery = isinstance(node, ast.Call) and "discovery." in ast.unparse(node.func)
    for argument in node.args if isinstance(node, ast.Call) and calls_discovery else ():
        if ast.unparse(argument).endswith("__path__"):
            owner = ast.unparse(argument).rpartition(".")[0]
            folder = path.parent if not owner else path.parents[1]
            assert owner in ("", folder.name), f"{path} discovers another package: {owner}"
            package = ".".join(("tfe_bench", *folder.relative_to(ROOT).parts))
            yield from {name for name in modules if name.rpartition(".")[0] == package}


def _import_circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the groups of modules that import each other."""

    def reached(start: str) -> set[str]:
        reachable: set[str] = set()
        left = [start]
        while left:
            new = imports[left.pop()] - reachable
            reachable |= new
            left += new
        return reachable

    behind = {module: reached(module) for module in imports}
    return {
        frozenset(other for other in behind[module] if module in behind[other])
        for module in imports
        if module in behind[module]
    }


def test_no_modules_import_each_other() -> None:
    files = PICTURES.list_modules()
    imports = {name: set(_named_modules(path, set(files))) - {name} for name, path in files.items()}
    assert not _import_circles(imports)


def test_tensorflow_is_pinned_alike_for_building_and_running() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins = {
        dependency
        for dependency in project["build-system"]["requires"] + project["project"]["dependencies"]
        if dependency.startswith("tensorflow")
    }
    assert pins == {"tensorflow==2.21.*"}


def _locked(name: str) -> dict[str, list[str]]:
    """Return the entries of a lock file by package: version and marker, without hashes."""
    entries: dict[str, list[str]] = {}
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    lines = [x for x in text.splitlines() if not x.startswith("#")]
    for entry in re.split(r"\n(?=\S)", "\n".join(lines)):
        match = re.fullmatch(
            r"([\w.-]+)==([^ ;]+)( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry
        )
        assert match, f"{name}: {entry[:100]!r} is not one version with hashes"
        entries.setdefault(match[1].lower().replace("_", "-"), []).append(match[2])
    return entries


@pytest.mark.parametrize(("name", "extra"), [("base.txt", None), ("test.txt", "test")])
def test_lock_files_have_hashes_and_versions_within_the_ranges(
    name: str, extra: str | None
) -> None:
    from packaging.requirements import Requirement

    spec = importlib.util.spec_from_file_location("lock", ROOT / "requirements" / "lock.py")
    assert spec is not None and spec.loader is not None
    lock = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lock)
    locked = _locked(name)
    requirements = [Requirement(text) for text in lock.wanted(extra)]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for each in [*requirements, *map(Requirement, build)]:
        versions = locked[each.name.lower()]
        assert all(each.specifier.contains(v) for v in versions), (str(each), versions)
    bounded = [r for r in requirements if not any(s.operator in ("<", "==") for s in r.specifier)]
    assert [r.name for r in bounded] == (["setuptools"] if extra else [])
    # The larger file contains the versions of the smaller one, so that one environment suits both.
    larger = _locked("test.txt")
    assert {k: larger[k] for k in _locked("base.txt")} == _locked("base.txt")


def test_a_checkout_registers_programs_without_an_installation() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    code = (
        "import importlib.metadata, json\n"
        "from tfe_bench import extensions\n"
        "from tfe_bench.cluster import jobs\n"
        "importlib.metadata.entry_points = lambda group: ()\n"
        "found = jobs.installed_programs()\n"
        "assert all(jobs.load_program(name).name == name for name in found)\n"
        f"groups = {list(groups)!r}\n"
        "points = {g: extensions.list_entry_points(g) for g in groups}\n"
        "print(json.dumps({g: {k: e.value for k, e in points[g].items()} for g in groups}))\n"
    )
    done = _run_code(code, ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == groups


_BUILD = """
import platform, runpy, sys
system, machine = sys.argv[1:]
platform.system, platform.machine = lambda: system, lambda: machine
sys.argv = ["setup.py", "-q", "build_ext", "--build-lib", "l", "--build-temp", "t"]
runpy.run_path("setup.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("system", "machine", "compiler", "words"),
    [
        ("Darwin", "arm64", "g++", "runs on Linux on x86_64. Received: Darwin on arm64."),
        ("Windows", "AMD64", "g++", "runs on Linux on x86_64. Received: Windows on AMD64."),
        ("Linux", "aarch64", "g++", "runs on Linux on x86_64. Received: Linux on aarch64."),
        ("Linux", "x86_64", "no-such-g++ -pipe", "'no-such-g++' cannot be run (No such file"),
        ("Linux", "x86_64", "false", "'false' refuses a trial"),
        pytest.param(
            *("Linux", "x86_64", "sh -c 'case $* in *syntax*) ;; *) exit 3; esac' sh"),
            "'sh' ended with 3 on ",
            marks=pytest.mark.slow,  # imports TensorFlow, which prints more
        ),
    ],
)
def test_a_build_that_cannot_be_says_in_one_line_what_is_missing(
    tmp_path: Path, system: str, machine: str, compiler: str, words: str
) -> None:
    copy = tmp_path / "checkout"
    ignore = shutil.ignore_patterns(".git", "tests", "*.so", "__pycache__", "build", "docs")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, system, machine],
        cwd=copy,
        env={**os.environ, "CXX": compiler, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    error_lines = [line for line in done.stderr.splitlines() if "000 00:00:" not in line]
    error_lines = [line for line in error_lines if not line.startswith("WARNING: All log messages")]
    assert (
        len(error_lines) == 1 and error_lines[0].startswith("error: ") and words in error_lines[0]
    ), done.stderr
    assert done.stdout == ""
    assert not list(copy.rglob("*.so"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["normal", "editable", "wheel", "sdist"])
def test_every_way_to_install_gives_a_working_sort(mode: str, tmp_path: Path) -> None:
    """Build without isolation, with the TensorFlow of the running environment."""
    checkout = tmp_path / "checkout"
    ignore = shutil.ignore_patterns(".git", "*.so", "__pycache__", "build", "*.egg-info")
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=ignore)
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True, system_site_packages=False)
    python = str(environment / "bin" / "python")
    here = Path(next(p for p in sys.path if p.endswith("site-packages")))
    site = next((environment / "lib").glob("python*/site-packages"))
    # Everything but tfe_bench itself comes from the running environment.
    for name in ("setuptools*", "pkg_resources", "_distutils_hack", "distutils-precedence.pth"):
        for path in site.glob(name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (site / "outer.pth").write_text(f"import sys; sys.path.append({str(here)!r})\n")

    def pip(*arguments: str) -> None:
        command = [python, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps"]
        subprocess.run([*command, *arguments], cwd=checkout, check=True, timeout=900)

    if mode == "normal":
        pip(".")
    elif mode == "editable":
        pip("-e", ".")
    else:
        code = f"import setuptools.build_meta as b, sys\nprint(b.build_{mode}({str(tmp_path)!r}))\n"
        built = subprocess.run(
            [python, "-c", code], cwd=checkout, check=True, capture_output=True, text=True
        )
        pip(str(tmp_path / built.stdout.splitlines()[-1]))
    away = tmp_path / "away"
    away.mkdir()
    done = _run_code(
        "import tfe_bench, sys; from tfe_bench.__main__ import main\n"
        "print(tfe_bench.__file__, file=sys.stderr)\n"
        "sys.exit(main(['sort', '--n', '50', '--repeat', '1', '--json']))",
        away,
        python,
    )
    assert done.returncode == 0, done.stderr
    expected = checkout if mode == "editable" else site
    assert str(expected) in done.stderr
    if mode in ("normal", "editable"):  # and from the checkout itself
        done = _run_code(
            "from tfe_bench.protocols.session import ops; print(ops.abi())", checkout, python
        )
        assert done.returncode == 0, done.stderr


def test_extras_are_installed_from_the_checkout_as_no_registry_has_this_package() -> None:
    """Anyone could publish a package under a name that a text recommends."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.md", "*.ipynb"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    wrong = re.compile(r"pip install (-\S+ )*['\"]?tfe[-_]bench")
    for name in filter(None, tracked.split("\0")):
        text = (ROOT / name).read_text(errors="replace")
        assert not wrong.search(text), name
