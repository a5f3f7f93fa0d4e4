"""The command line. Commands are named here and imported when called, so that ``sheafstain --help`` needs no torch."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, NoReturn

from cyclopts import App, CycloptsError, Parameter

from sheafstain import __version__
from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError

app = App(
    name="sheafstain",
    version=__version__,
    help="""Virtual IHC from H&E histology, without seams, at whole-slide size, with a map of where not to trust it.

    A research tool: nothing it writes is a diagnosis.""",
    help_format="plaintext",
)
app["--help"].group = app["--version"].group = "About"

data = App(name="data", help="Draw phantom data sets and check real ones.", help_format="plaintext")
app.command(data)

app.command("sheafstain.cli.doctor:doctor")
data.command("sheafstain.cli.data_check:check")
data.command("sheafstain.cli.data_phantom:phantom")

app.meta.group_parameters = "Everywhere"


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    json: Annotated[bool, Parameter(negative=())] = False,
    debug: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """
    Parameters
    ----------
    json
        Print one JSON object a line instead of text.
    debug
        Show the traceback of an error.
    """
    console.json, console.debug = json, debug
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def main() -> NoReturn:
    """Exit code 0 when done, 1 when it failed, 2 when the command was wrong, 130 when interrupted."""
    try:
        app.meta(exit_on_error=False, print_error=False, result_action="return_value")
    except SheafStainError as error:
        _fail(str(error), error.exit_code)
    except CycloptsError as error:
        _fail(f"{' '.join(str(error).split())} See: sheafstain --help", 2)
    except BrokenPipeError:
        # The reader went away (``| head``): point stdout elsewhere so that the interpreter's last flush is quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(_os_error(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    sys.exit(0)


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    advice = {
        errno.ENOSPC: "the disk is full; make room or choose another output folder",
        errno.EDQUOT: "the disk quota is used up; make room or choose another output folder",
        errno.EACCES: "no permission; choose another folder or change its rights",
        errno.EROFS: "the file system is read-only; choose another output folder",
        errno.ENOENT: "no such file or folder",
    }
    return where + advice.get(error.errno or 0, error.strerror or str(error))


def _fail(text: str, code: int) -> NoReturn:
    if console.debug and sys.exc_info()[0] is not None:
        import traceback

        traceback.print_exc()
    console.error(text)
    sys.exit(code)
