"""Build the compiled libraries and install tfe_bench.

protocols/, models/, cluster/ and benchmarks/ lie at the top of the repository and
are installed as tfe_bench.protocols, tfe_bench.models, tfe_bench.cluster and
tfe_bench.benchmarks, so that they never shadow, and are never shadowed by, a
module of the same name.  In a checkout the links in tfe_bench/ point at them.
"""

import functools
import hashlib
import os
import platform
import shlex
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, PlatformError

HERE = Path(__file__).resolve().parent
SUBPACKAGES = ("protocols", "models", "cluster", "benchmarks")

# Files named for an instruction set are compiled for it and chosen at run time; all others run on
# any x86-64, so that the check of the processor itself runs everywhere.
AVX2 = ["-mavx2", "-mbmi2", "-mfma", "-maes"]
ISA_FLAGS = {
    "_aesni": ["-maes", "-mssse3", "-msse4.1"],
    "_avx2": AVX2,
    "_avx512": [
        *AVX2,
        *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mvaes"),
        "-mprefer-vector-width=512",
    ],
    "_ifma": [*AVX2, "-mavx512f", "-mavx512vl", "-mavx512ifma", "-mavx512vnni"],
    "_amx": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vbmi"],
}


def compiler():
    """Return the command of a C++ compiler that supports all instruction sets.

    Raises:
        PlatformError: no such compiler, or the ops cannot run on this machine; setuptools prints
            its text as one line.
    """
    here = f"{platform.system()} on {platform.machine()}"
    if here != "Linux on x86_64":
        raise PlatformError(f"tfe_bench runs on Linux on x86_64. Received: {here}.")
    command = shlex.split(os.environ.get("CXX", "g++"))
    trial = [*command, "-std=c++17", *ISA_FLAGS["_avx512"], "-x", "c++", "-fsyntax-only", "-"]
    try:
        fits = subprocess.run(trial, input=b"#include <vector>\n", capture_output=True)
    except OSError as error:
        raise PlatformError(
            f"tfe_bench compiles C++, and {command[0]!r} cannot be run ({error.strerror}). Install "
            "g++ 12 or later (apt-get install g++; dnf install gcc-c++), or name a compiler in CXX."
        ) from None
    if fits.returncode:
        raise PlatformError(
            f"tfe_bench compiles C++17 for AVX-512, and {command[0]!r} refuses a trial. Install "
            "g++ 12 or later with its standard library, or name another compiler in CXX."
        )
    return command


def make(target, command):
    """Run a compiler, which prints its own messages.

    Raises:
        CompileError: the compiler failed.
    """
    if code := subprocess.call([*command, "-o", str(target)]):
        name = Path(target).name
        raise CompileError(f"{command[0]!r} ended with {code} on {name}: its messages are above.")


class OpsLibrary(Extension):
    """A plain shared library of all C++ in a folder, which registers TensorFlow's ops.

    Its files in `core` include no TensorFlow.
    """

    def __init__(self, name, folder):
        files = sorted(p.relative_to(HERE) for p in (HERE / folder).glob("*/*"))
        self.headers = [p for p in files if p.suffix in (".h", ".inl")]
        super().__init__(name, sources=[str(p) for p in files if p.suffix == ".cc"])

    def flags(self):
        """Return the flags to compile and to link, which name the version of TensorFlow.

        Raises:
            PlatformError: TensorFlow is missing.
        """
        try:
            import tensorflow as tf
        except ImportError as error:
            raise PlatformError(f"tfe_bench is built with TensorFlow, missing: {error}.") from None
        # As system headers: their warnings are not ours.
        compiled = [f.replace("-I", "-isystem", 1) for f in tf.sysconfig.get_compile_flags()]
        version = f'-DTFE_BENCH_TF_VERSION="{tf.__version__}"'
        return [version, *compiled], tf.sysconfig.get_link_flags()


class BuildOps(build_ext):
    """Command that compiles plain shared libraries, and copies them next to the sources."""

    def get_ext_filename(self, fullname):
        return fullname.replace(".", "/") + ".so"

    def build_extension(self, ext):
        # Only now: metadata commands must work everywhere, and without TensorFlow.
        cxx = compiler()
        all_flags, link = ext.flags()

        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        output.parent.mkdir(parents=True, exist_ok=True)
        objects = Path(self.build_temp).resolve() / ext.name
        common = ["-O3", "-fPIC", "-Wall", "-Wno-psabi", "-DNDEBUG", f"-I{HERE}"]
        # TensorFlow's flags name its C++ standard; the core requires C++17.
        core_flags = [f for f in all_flags if not f.startswith("-isystem")]

        def compile_one(source):
            path = Path(source)
            target = objects / path.with_suffix(".o").name
            isa = next((f for s, f in ISA_FLAGS.items() if path.stem.endswith(s)), [])
            flags = core_flags if path.parent.name == "core" else all_flags
            # An object of the same sources is kept: a second install, or one change, takes seconds.
            # (Each isolated build has TensorFlow's headers elsewhere: its version identifies them.)
            own = [f for f in flags if not f.startswith("-isystem")]
            made_of = repr([*cxx, *common, *own, *isa]).encode() + (HERE / path).read_bytes()
            key = hashlib.sha256(made_of + headers).hexdigest()
            note = target.with_suffix(".key")
            if not (target.exists() and note.exists() and note.read_text() == key):
                note.unlink(missing_ok=True)
                if b'"protocols/kernels/ops/' in (HERE / path).read_bytes():
                    with precompiling:
                        flags = [*precompile(), *flags]
                make(target, [*cxx, *common, *flags, *isa, "-c", str(HERE / path)])
                note.write_text(key)
            return str(target)

        precompiling = threading.Lock()
        header = objects / "ops.h"

        @functools.cache
        def precompile():
            """Compile TensorFlow's headers once: reading them takes most of a file's time."""
            header.write_text('#include "protocols/kernels/ops/kernel.h"\n')
            make(f"{header}.gch", [*cxx, *common, *all_flags, "-x", "c++-header", str(header)])
            return ["-include", str(header)]

        objects.mkdir(parents=True, exist_ok=True)
        headers = b"".join((HERE / p).read_bytes() for p in ext.headers)
        # The files that include TensorFlow take longest: start them first.
        sources = sorted(ext.sources, key=lambda s: "/core/" in s)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            compiled = list(pool.map(compile_one, sources))
        Path(f"{header}.gch").unlink(missing_ok=True)  # (hundreds of megabytes)
        make(output, [*cxx, "-shared", *compiled, *link, "-Wl,-z,defs", "-lpthread"])
        # `python -m tfe_bench` in the checkout imports the checkout, also after a
        # plain `pip install .`; it finds the library there.
        in_place = HERE / self.get_ext_filename(ext.name)
        if in_place.parent.is_dir() and output != in_place:
            # Replaced, not overwritten: a running process may have the old one mapped.
            fresh = in_place.with_suffix(".so.new")
            self.copy_file(str(output), str(fresh))
            os.replace(fresh, in_place)


LINKED = [pattern for s in SUBPACKAGES for pattern in (f"tfe_bench.{s}", f"tfe_bench.{s}.*")]

setup(
    packages=find_packages(include=["tfe_bench", "tfe_bench.*"], exclude=LINKED)
    + [f"tfe_bench.{p}" for s in SUBPACKAGES for p in find_packages(include=[s, f"{s}.*"])],
    package_dir={f"tfe_bench.{s}": s for s in SUBPACKAGES},
    package_data={
        "": ["*.toml", "*.csv", "*.pyi", "py.typed"],
        "tfe_bench.benchmarks.report": ["page.html", "page.css", "page.js"],
        "tfe_bench.benchmarks.technologies.functional": ["kernels/*"],  # compiled at first use
        "tfe_bench.cluster": ["deploy/*"],
    },
    ext_modules=[OpsLibrary("tfe_bench._ops", "protocols/kernels")],
    cmdclass={"build_ext": BuildOps},
)
