"""Runs the notebooks of docs/notebooks, and writes each with its outputs as an .ipynb file.

    pip install jupytext nbclient ipykernel vl-convert-python
    python -m experiments.notebooks

The .py files are the sources. The site shows the .ipynb files, so it is built without a kernel, and
charts are SVG, so they need no script. Messages on standard error are left out.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
AT_START = "import altair; altair.renderers.enable('svg')"


def main() -> None:
    """Run every notebook in an empty folder with a tracking store of its own."""
    for source in sorted(NOTEBOOKS.glob("*.py")):
        notebook = jupytext.read(source)
        with TemporaryDirectory() as folder:
            os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
            NotebookClient(
                notebook,
                resources={"metadata": {"path": folder}},
                extra_arguments=[f"--IPKernelApp.exec_lines={AT_START}"],
                record_timing=False,
            ).execute()
        notebook.metadata = {"kernelspec": KERNEL}
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"
            if cell.cell_type == "code":
                cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
        jupytext.write(notebook, source.with_suffix(".ipynb"))
        print(source.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()
