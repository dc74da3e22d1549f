"""Commands about sandlift itself: what it runs in a sandbox, and completion for shells."""

from __future__ import annotations

import shlex

import click

from sandlift.cli import output
from sandlift.cli.settings import Settings, common_options, pass_settings
from sandlift.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


@click.command("helper")
@click.option("--source", "what", flag_value="source", help="The source of all that runs there.")
@click.option("--digest", "what", flag_value="digest", help="The SHA-256 of that source, as snapshots record it.")
@click.option("--command", "what", flag_value="command", help="The command that starts it.")
@click.option("--python", metavar="PATH", help="With --command: the Python to use in the sandbox.")
@common_options
@pass_settings
def helper(settings: Settings, what: str | None, python: str | None) -> None:
    """Show exactly what runs in a sandbox.

    Nothing is written there: the command reads the source from its standard input.
    """
    from sandlift import payload

    if what is None:
        raise UsageError("helper needs one of --source, --digest and --command")
    if what == "digest":
        digest = payload.digest()
        _write(settings, {"digest": digest}, digest + "\n")
    elif what == "command":
        argv = payload.sandbox_argv(python)
        _write(settings, {"command": argv}, shlex.join(argv) + "\n")
    else:
        sources = {"start": payload.START, "_stage.py": payload.stage().decode()}
        for name, module in payload.sources().items():
            sources[f"sandlift_helper/{name[1:] or '__init__'}.py"] = module.decode()
        text = "".join(f"# ==> {name}\n{source.rstrip()}\n\n" for name, source in sources.items())
        _write(settings, {"digest": payload.digest(), "source": sources}, text)


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@common_options
@pass_settings
@click.pass_context
def completion(context: click.Context, settings: Settings, shell: str) -> None:
    """Print a shell's completion script.

    For bash: eval "$(sandlift completion bash)"
    """
    from click.shell_completion import get_completion_class

    from sandlift.cli import COMPLETION_VARIABLE, PROGRAM

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(context.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE)
    script = complete.source_template % complete.source_vars()
    _write(settings, {"shell": shell, "script": script}, script)


def _write(settings: Settings, fields: dict[str, object], text: str) -> None:
    if settings.json:
        output.write_json(fields)
    else:
        output.write(text)
