"""The installed CMake package: examples/cpp built outside the source tree, same bits as Python."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import every_device

from scmp_kernels import mp, prepare, quant, sc_conv2d, sc_matmul
from scmp_kernels.sc.config_helpers import make_sobol_altseed_config

ROOT = Path(__file__).resolve().parents[1]
# Programs of examples/cpp built on another machine, for one without CMake (scripts/gpu_check.sh).
CARRIED = os.environ.get("SCMP_EXAMPLE_PROGRAMS")
BUILD = Path(os.environ.get("SCMP_BUILD_DIR", ROOT / "build" / "cmake"))
CMAKE = Path(sys.executable).parent / "cmake"

pytestmark = pytest.mark.skipif(
    not CARRIED
    and (not (BUILD / "CMakeCache.txt").exists() or not (CMAKE.exists() or shutil.which("cmake"))),
    reason="no CMake build to install from",
)


def environment():
    """Where carried programs find their libraries: the folders in them are another machine's."""
    if not CARRIED:
        return None
    torch_folder = Path(torch.__file__).parent
    folders = [ROOT / "scmp_kernels", torch_folder / "lib"]
    folders += sorted((torch_folder.parent / "nvidia").glob("*/lib"))
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}


def run(*command):
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    if CARRIED:
        return Path(CARRIED)
    folder = tmp_path_factory.mktemp("deploy")
    cmake = CMAKE if CMAKE.exists() else "cmake"
    shutil.copytree(ROOT / "examples" / "cpp", folder / "source")
    run(cmake, "--install", BUILD, "--component", "cpp", "--prefix", folder / "package")
    run(
        cmake,
        *("-S", folder / "source", "-B", folder / "build"),
        f"-DCMAKE_PREFIX_PATH={folder / 'package'}",
        f"-DPython3_EXECUTABLE={sys.executable}",
    )
    run(cmake, "--build", folder / "build", "--parallel", "2")
    return folder / "build"


@every_device
def test_the_cpp_functions(programs, device):
    """The program takes the GPU where there is one."""
    if device == "cpu" and torch.cuda.is_available():
        pytest.skip("it takes the GPU")
    lines = run(programs / "matmul").splitlines()
    errors = [float(line.split()[-1]) for line in lines[:3]]
    assert errors[0] < 0.05 and errors == sorted(errors)
    assert lines[3].startswith("refused: sc_matmul: a and b must have the same last size D")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(6, 16))
        self.register_buffer("kernels", torch.randn(4, 1, 3, 3))
        self.register_buffer("scales", torch.rand(16) + 0.5)
        self.register_buffer("lengths", torch.tensor([256, 64, 0]))

    def forward(self, x):
        levels = torch.ops.scmp.classify_rows_by_metric(
            torch.ops.scmp.compute_row_metric(x, "amax"), [0.4, 0.4, 0.2]
        )
        y = torch.ops.scmp.sc_matmul(
            x,
            self.weight,
            chunk_d=5,
            smooth_scales=self.scales,
            row_stoc_len=self.lengths[levels],
        )
        image = torch.ops.scmp.sc_conv2d(y[None, None], self.kernels, None, padding=[1, 1])
        return torch.ops.scmp.sc_matmul(image[0, 0], image[0, 1], mode="unipolar", stoc_len=50)


class Carrier(torch.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.register_buffer("x", x)

    def forward(self):
        return self.x


def assert_program_gives(expected, x, tmp_path, program, model):
    torch.jit.script(Carrier(x)).save(str(tmp_path / "x.pt"))
    out = run(program, model, tmp_path / "x.pt", tmp_path / "y.pt")
    assert out == f"wrote {expected.numel()} values\n"
    assert torch.equal(torch.jit.load(str(tmp_path / "y.pt")).x, expected)


@every_device
def test_a_torchscript_model(programs, tmp_path, device):
    model, x = Model().eval().to(device), torch.randn(5, 16, device=device)
    torch.jit.script(model).save(str(tmp_path / "model.pt"))
    assert_program_gives(model(x), x, tmp_path, programs / "torchscript", tmp_path / "model.pt")


class Functions(torch.nn.Module):
    """The Python functions as users call them: prepared weights, lengths by row, SmoothQuant."""

    def __init__(self):
        super().__init__()
        self.weight = prepare(torch.randn(6, 16), chunk_d=5)
        self.taps = prepare(torch.randn(4, 1, 3, 3))
        self.register_buffer("scales", torch.rand(16) + 0.5)
        self.config = make_sobol_altseed_config(6, 6)

    def forward(self, x):
        x, _ = quant.apply_smoothing(x, x, self.scales)
        metric = mp.compute_row_metric(x)
        rows = mp.classify_rows_by_metric(metric, [256, 64, 0], [0.4, 0.4, 0.2])
        y = sc_matmul(x, self.weight, stoc_len=rows.row_stoc_len)
        image = sc_conv2d(y[None, None], self.taps, padding="same")
        scale, q, _ = torch.ops.scmp.grouped_symmetric_quant(image[0, 0], 1, 127)
        return sc_matmul(q * scale[:, None], image[0, 1], config=self.config)


PLAIN_PACKAGE = """
import sys, torch
layer, x = torch.nn.Linear(16, 6).to(sys.argv[1]), torch.randn(5, 16, device=sys.argv[1])
with torch.no_grad():
    path = torch._inductor.aoti_compile_and_package(
        torch.export.export(layer, (x,)), package_path=sys.argv[2]
    )
    torch._inductor.aoti_load_package(path)
"""


def loads_packages(device, folder):
    """Whether torch alone can load a package that it made: on some machines it crashes."""
    command = [sys.executable, "-c", PLAIN_PACKAGE, device, str(folder / "plain.pt2")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@every_device
def test_an_ahead_of_time_package(programs, tmp_path, device):
    """With a dynamic number of rows, from Python and from C++."""
    if device == "cuda" and not loads_packages(device, tmp_path):
        pytest.skip("torch cannot load its own packages for CUDA here")
    model, rows = Functions().eval().to(device), torch.export.Dim("rows", min=2, max=100)
    x = torch.randn(5, 16, device=device)
    exported = torch.export.export(model, (x,), dynamic_shapes={"x": {0: rows}})
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path=str(tmp_path / "model.pt2")
    )
    loaded = torch._inductor.aoti_load_package(path)
    for n in (5, 9):
        x = torch.randn(n, 16, device=device)
        assert torch.equal(loaded(x), model(x))
    assert_program_gives(model(x), x, tmp_path, programs / "aot_package", path)
