"""The notebook of the docs runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[2] / "docs" / "library.ipynb"


@pytest.fixture
def kernel_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel of this interpreter, whatever others are installed for the user."""
    from ipykernel.kernelspec import write_kernel_spec

    write_kernel_spec(tmp_path / "kernels" / "python3")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


@pytest.mark.usefixtures("kernel_here")
@pytest.mark.filterwarnings("default")  # of Jupyter's own libraries
def test_the_notebook_runs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert "layers.1.mlp.act_fn" in pages[0] and "✗" in pages[0]
    texts = [output["data"].get("text/plain", "") for output in shown if "data" in output]
    assert texts.count("True") == 1
    assert any("first bad: layers.1.mlp.act_fn" in text for text in texts)
