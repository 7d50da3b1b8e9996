"""Drives the CMake build: `pip install --no-build-isolation .` (editable too).

Environment:
    SCMP_CUDA        AUTO (default), ON or OFF: whether to build the CUDA kernels.
    SCMP_BUILD_DIR   CMake build folder, default build/cmake.
    SCMP_CMAKE_ARGS  further arguments for the configure step.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def project_version() -> str:
    """The version that CMakeLists.txt declares, the only place that has it."""
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(scmp_kernels VERSION ([0-9.]+)", text).group(1)


class CMakeBuild(build_ext):
    """Configures, builds and installs the operator library and ``_C`` beside the package."""

    def build_extension(self, ext: Extension) -> None:
        packages = [Path(self.get_ext_fullpath(ext.name)).resolve().parent]
        if getattr(self, "editable_mode", False):  # setuptools would copy _C alone
            packages.append(ROOT / "scmp_kernels")
        folder = Path(os.environ.get("SCMP_BUILD_DIR", ROOT / "build" / "cmake"))
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(folder),
            f"-DPython3_EXECUTABLE={sys.executable}",
            f"-DSCMP_CUDA={os.environ.get('SCMP_CUDA', 'AUTO')}",
            *shlex.split(os.environ.get("SCMP_CMAKE_ARGS", "")),
        ]
        if not (folder / "CMakeCache.txt").exists() and shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        build = ["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)]
        install = ["cmake", "--install", str(folder), "--component", "python"]
        subprocess.run(configure, check=True)
        subprocess.run(build, check=True)
        for package in packages:
            subprocess.run([*install, "--prefix", str(package)], check=True)


setup(
    version=project_version(),
    ext_modules=[Extension("scmp_kernels._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
