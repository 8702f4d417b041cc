"""Makes `mlflow run` use the virtual environment that runs this file.

`mlflow run .` looks for the environment of python_env.yaml in the folder
`$MLFLOW_ENV_ROOT/mlflow-<hash>`. If the folder exists, MLflow uses it unchanged; otherwise it calls
pyenv to build one. So `make` creates two things inside `.venv`:

    mlflow-envs/mlflow-<hash>         a link to .venv itself
    site-packages/clew_mlflow.pth     sets MLFLOW_ENV_ROOT to .venv/mlflow-envs and turns off
                                      MLflow's usage statistics whenever Python starts in this
                                      environment

The .pth file overrides an MLFLOW_ENV_ROOT of the shell: `.venv/bin/mlflow run .` works without
activation, nothing is written outside the clone, and two clones do not share a link. The hash
covers python_env.yaml and constraints.txt, so `make` runs this again when one of them changes.

The name comes from a private helper of MLflow; a test compares it with a real `mlflow run`.
"""

import shlex
import sys
import sysconfig
from pathlib import Path

from mlflow.utils.environment import _PythonEnv
from mlflow.utils.virtualenv import _get_virtualenv_name

ROOT_FOLDER = "mlflow-envs"
START_UP_FILE = "clew_mlflow.pth"
# A line of a .pth file that starts with `import` is executed by `site` at start-up.
START_UP_LINE = (
    "import os, sys; "
    f"os.environ['MLFLOW_ENV_ROOT'] = os.path.join(sys.prefix, {ROOT_FOLDER!r}); "
    "os.environ.setdefault('MLFLOW_DISABLE_TELEMETRY', 'true')\n"
)


def environment_name(project: Path) -> str:
    """Return the folder name under which `mlflow run` looks for the project's environment."""
    environment = _PythonEnv.from_yaml(project / "python_env.yaml")  # type: ignore[no-untyped-call]
    name = _get_virtualenv_name(environment, project)  # type: ignore[no-untyped-call]
    return str(name)


def link_environment(project: Path, prefix: Path) -> Path:
    """Link the name that MLflow looks for to `prefix`, and replace any earlier link."""
    root = prefix / ROOT_FOLDER
    root.mkdir(exist_ok=True)
    for stale in root.iterdir():
        if stale.is_symlink():
            stale.unlink()
    link = root / environment_name(project)
    link.symlink_to(Path(".."))
    return link


def main() -> None:
    """Make the running environment that of the project that contains this file."""
    if sys.prefix == sys.base_prefix:
        sys.exit("clew: run this with .venv/bin/python; it writes into that environment")
    link = link_environment(Path(__file__).resolve().parent.parent, Path(sys.prefix))
    Path(sysconfig.get_path("purelib"), START_UP_FILE).write_text(START_UP_LINE, encoding="utf-8")
    if shlex.quote(str(link)) != str(link):
        sys.stderr.write(
            f"clew: {link} has characters that MLflow does not quote; everything works except "
            "`mlflow run`, which needs the project in a folder with a plain name\n"
        )


if __name__ == "__main__":
    main()
