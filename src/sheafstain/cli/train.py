"""``sheafstain train`` and ``sheafstain export``: from a configuration to a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sheafstain.cli.console import console

if TYPE_CHECKING:
    from sheafstain.training.events import Event


def train(
    config: Path,
    *settings: Annotated[str, Parameter(allow_leading_hyphen=True)],
    resume: Annotated[bool, Parameter(negative=())] = False,
    show: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train a translator from H&E to a stain.

    Writes a folder (the setting "output") with the resolved configuration, a log, checkpoints, pictures of held-out
    images and, at the end, the model. SIGTERM and Ctrl-C end it after the step with everything saved, exit codes 75
    and 130; the same command with --resume goes on exactly where it was.

    On several GPUs: torchrun --nproc-per-node 8 -m sheafstain.training CONFIG --resume

    Parameters
    ----------
    config
        A configuration in YAML, as in configs/, or the folder of a run.
    settings
        Settings that replace those of the file, as --key.sub value: --data.root ~/BCI --batch 24.
    resume
        Go on from the last checkpoint, if there is one.
    show
        Print the resolved configuration with all its settings and do nothing.
    """
    from sheafstain.training.__main__ import exit_code
    from sheafstain.training.config import read_config
    from sheafstain.training.run import train as run
    from sheafstain.training.settings import as_tree, as_yaml

    # What looks like a setting is handed on as it is, the launcher's own options among them: main has read those.
    resolved = read_config(config, [word for word in settings if word not in ("--json", "--debug")])
    if show:
        console.line(as_yaml(resolved).rstrip())
        console.event("configuration", **as_tree(resolved))
        return
    outcome = run(resolved, resume=resume, tell=_tell, progress=console.progress)
    if outcome.signal is not None:
        sys.exit(exit_code(outcome.signal))


def export(
    run: Path,
    *,
    checkpoint: str = "last",
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    name: str | None = None,
) -> None:
    """Write the model of a training, whether it is finished or not.

    Parameters
    ----------
    run
        The folder of the run.
    checkpoint
        last, best, the number of a step, or a file.
    output
        Folder of the model; RUN/model when not given.
    name
        What the model is called; the folder of the run when not given.
    """
    from sheafstain.training.export import FOLDER, newest
    from sheafstain.training.export import export as write

    path = newest(run, checkpoint)
    model = write(path, output or run / FOLDER, name or run.resolve().name)
    console.line(f"{model}: the model of {path.name}")
    console.event("model", path=str(model), checkpoint=str(path))


def _tell(event: Event) -> None:
    if event.name == "warning":
        console.warn(event.text)
    else:
        console.line(event.text)
        console.event(event.name, **event.fields)
