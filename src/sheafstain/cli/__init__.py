"""The command line. Commands are named here and imported when called, so that ``sheafstain --help`` needs no torch."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Annotated, Any, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter, UnknownCommandError

from sheafstain import __version__
from sheafstain.cli.console import console
from sheafstain.errors import SheafStainError

_DATA = Group.create_ordered("Data")
_SHEAF = Group.create_ordered("Sheaf")
_TRAIN = Group.create_ordered("Train")
_TRANSLATE = Group.create_ordered("Translate")
_SCORE = Group.create_ordered("Score")
_ABOUT = Group.create_ordered("About")
_EVERYWHERE = Group.create_ordered("With every command")

app = App(
    name="sheafstain",
    version=__version__,
    help="""Virtual IHC from H&E histology, without seams, at whole-slide size, with a map of where not to trust it.

    Research use only: not a medical device, and nothing it writes is a diagnosis.""",
    help_format="plaintext",
    default_parameter=Parameter(negative_iterable=()),  # no --empty-… beside every option that takes a list
)
app["--help"].group = app["--version"].group = _ABOUT
app.meta.group_parameters = _EVERYWHERE
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False  # main says it

# The help given here is for the list of commands, which imports none of them; a command's own page has its docstring.
data = App(name="data", group=_DATA, help="Draw phantom data sets and check real ones.", help_format="plaintext")
app.command(data)
data.command("sheafstain.cli.data_check:check", help="Check a data set for what would spoil a training.")
data.command("sheafstain.cli.data_phantom:phantom", help="Draw H&E/IHC pairs or a whole slide with known truth.")
app.command("sheafstain.cli.encoders:encoders", group=_SHEAF, help="List the encoders and which are present here.")
app.command("sheafstain.cli.sections:sections", group=_SHEAF, help="Encode a data set once, for training to cut from.")
app.command("sheafstain.cli.audit:audit", group=_SHEAF, help="Measure how far an encoder's tokens are from a sheaf.")
app.command("sheafstain.cli.train:train", group=_TRAIN, help="Train a translator from H&E to a stain.")
app.command("sheafstain.cli.train:export", group=_TRAIN, help="Write the model of a training, at any checkpoint.")
app.command("sheafstain.cli.stain:stain", group=_TRANSLATE, help="Translate images and slides, with their defect.")
app.command("sheafstain.cli.demo:demo", group=_TRANSLATE, help="Stain synthetic tissue and show it on one page.")
app.command("sheafstain.cli.models:models", group=_TRANSLATE, help="List the translators that are here.")
app.command("sheafstain.cli.score:score", group=_SCORE, help="Measure stained images against the real stain.")
app.command("sheafstain.cli.compare:compare", group=_SCORE, help="Hold several scores of the same images together.")
app.command("sheafstain.cli.her2:her2", group=_SCORE, help="Does a HER2 classifier learn from the stained images?")
app.command("sheafstain.cli.doctor:doctor", group=_ABOUT, help="Say what is installed here, and how to get the rest.")


@app.meta.default
def _launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    json: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    debug: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
) -> None:
    """
    Parameters
    ----------
    json
        Print one JSON object a line instead of text.
    debug
        Show the traceback of an error.
    """
    # Both were read in main, so that a wrong command line is told in the same way.
    app(tokens, exit_on_error=False, print_error=False, result_action="return_value")


def main() -> NoReturn:
    """Exit code 0 when done, 1 when it failed, 2 when the command was wrong, 130 when interrupted."""
    tokens = sys.argv[1:]
    console.json, console.debug = "--json" in tokens, "--debug" in tokens
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no temporary file is left
    try:
        with _pages_from_docstrings(tokens):
            app.meta(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()  # while a reader that went away can still be told from a failure
    except SheafStainError as error:
        _fail(str(error), error.exit_code)
    except CycloptsError as error:
        _fail(_usage(error), 2)
    except BrokenPipeError:
        # The reader went away (``| head``): point stdout elsewhere so that the interpreter's last flush is quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(_os_error(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        _fail(f"{type(error).__name__}: {error} (a bug; --debug shows where)", 1)
    sys.exit(0)


@contextmanager
def _pages_from_docstrings(tokens: list[str]) -> Iterator[None]:
    """The page of a command is its docstring, paragraphs filled, and not the line from the list of commands."""
    commands = [command for command in app.parse_commands(tokens)[1] if command.default_command]
    lines: list[tuple[Any, Any]] = [(command.help, command.help_format) for command in commands]
    for command in commands:
        command.help, command.help_format = None, "markdown"
    try:
        yield
    finally:
        for command, (text, style) in zip(commands, lines, strict=True):
            command.help, command.help_format = text, style


def _usage(error: CycloptsError) -> str:
    where = " ".join(["sheafstain", *(error.command_chain or ())])
    text = _unknown(error) if isinstance(error, UnknownCommandError) else " ".join(str(error).split())
    return f"{text} See: {where} --help"


def _unknown(error: UnknownCommandError) -> str:
    """What cyclopts says, without importing every command to say it."""
    token = str((error.unused_tokens or [""])[0])
    near = get_close_matches(token, [*(error.app or ()), "--json", "--debug"], n=1)
    what = "option" if token.startswith("-") else "command"
    return f'Unknown {what} "{token}".' + (f' Did you mean "{near[0]}"?' if near else "")


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
    if console.debug:
        import traceback

        traceback.print_exc()
    console.error(" ".join(text.split()))
    sys.exit(code)
