"""What a source distribution holds, and that the version is written in one place."""

import re
import subprocess
import sys
import tarfile

import pytest
from support import ROOT

import scmp_kernels

pytestmark = pytest.mark.skipif(
    not (ROOT / "setup.py").exists(), reason="the tests run outside the source tree"
)
FOLDERS = (".ci", "benchmarks", "cmake", "csrc", "docs", "examples", "scmp_kernels", "scripts")
TESTS = ("tests_cpp", "tests_py")
GENERATED = re.compile(r"__pycache__|\.(pyc|so|png|csv)$|_built_with\.py$")


def test_the_sdist_has_all_sources_and_nothing_generated(tmp_path):
    code = f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {m.name.partition("/")[2] for m in tar if m.isfile()}
    assert not {name for name in names if GENERATED.search(name)}
    files = {
        str(path.relative_to(ROOT))
        for folder in (*FOLDERS, *TESTS)
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    files |= {path.name for path in ROOT.iterdir() if path.suffix in (".md", ".toml", ".yml")}
    files |= {"CITATION.cff", "CMakeLists.txt", "LICENSE", "Makefile", "setup.py", ".clang-format"}
    assert not {name for name in files - names if not GENERATED.search(name)}


def test_the_version_is_that_of_cmake():
    text = (ROOT / "CMakeLists.txt").read_text()
    version = re.search(r"project\(scmp_kernels VERSION (\S+)", text)[1]
    assert scmp_kernels.__version__ == version
    # Files that cannot compute it.
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
