"""The Python code of the pages runs as it is; each page is one program."""

import re
import runpy

import pytest
from support import ROOT

# mixed_precision.md and conversion.md are run by tests that look at more.
PAGES = (
    "README.md",
    "docs/deployment.md",
    "docs/porting.md",
    "docs/prepared.md",
    "docs/training.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    program = tmp_path / "page.py"  # a file: TorchScript reads sources
    program.write_text("\n".join(blocks))
    runpy.run_path(str(program), run_name="page")
