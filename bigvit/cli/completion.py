"""`bigvit completion`: what a shell offers when Tab is pressed. No torch here."""

import argparse
import re
from collections.abc import Iterable, Iterator
from functools import partial

from bigvit.cli.arguments import Add, Parser

SHELLS = ("bash", "zsh", "fish")
RECIPES = ("recipe", "base", "first", "second", "words", "training")
"""Arguments that are a recipe's name."""

HOW = {
    "bash": 'eval "$(bigvit completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(bigvit completion zsh)"  # in ~/.zshrc, after compinit',
    "fish": "bigvit completion fish | source  # in ~/.config/fish/config.fish",
}


def add(add: Add, parser: Parser) -> None:
    """Add the command, which tells of all that the parser has."""
    text = "print a script by which a shell completes commands, options and recipes"
    more = {"epilog": "\n".join(HOW.values()), "formatter_class": argparse.RawTextHelpFormatter}
    command = add("completion", partial(_completion, parser), text, **more)
    command.add_argument("shell", choices=SHELLS, help="whose script")


def _completion(parser: Parser, options: argparse.Namespace) -> None:
    from bigvit.recipe.find import all_recipes

    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]
    print(f"# {HOW[options.shell]}")
    print("\n".join(write(parser, " ".join(all_recipes()))))


def _takes_recipes(command: Parser) -> bool:
    return any(action.dest in RECIPES for action in command.arguments)


def _options(command: Parser) -> dict[str, str]:
    """A command's options, and what each means; those of a training where it takes them."""
    found = dict(command.options)
    trains = any(action.dest in ("words", "training") for action in command.arguments)
    if trains or "overrides" in vars(command)["_defaults"]:
        found |= _of_training()
    return found


def _of_training() -> dict[str, str]:
    """The options of a run, and the fields of all recipes."""
    from dataclasses import fields

    from bigvit.recipe import Run
    from bigvit.recipe.bounds import leaves
    from bigvit.recipe.find import all_recipes

    names = [field.name for field in fields(Run)]
    for recipe in all_recipes().values():
        names += [path for path, _ in leaves(recipe) if path != "source"]
    return {f"--{name.replace('_', '-')}": "" for name in dict.fromkeys(names)}


def _plain(text: str) -> str:
    """A text that needs no quoting within single quotes, nor means anything to a shell's tables."""
    return re.sub(r"[^\w .,;()/=+-]", "", text)


def _values(command: Parser) -> Iterable[str]:
    """What its positional arguments may be, where that is listed."""
    return (
        str(choice)
        for action in command.arguments
        if not action.option_strings
        for choice in action.choices or ()
    )


def _bash(parser: Parser, recipes: str) -> Iterator[str]:
    yield "_bigvit() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" options="" values=""'
    yield f"    local recipes='{recipes}'"
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f"        values='{' '.join(parser.commands)}' options='--help --version'"
    yield '    else case "${COMP_WORDS[1]}" in'
    for name, command in parser.commands.items():
        values = "$recipes" if _takes_recipes(command) else " ".join(_values(command))
        yield f"        {name}) options='{' '.join(_options(command))}' values=\"{values}\" ;;"
    yield "    esac; fi"
    yield '    case "$word" in -*) values="$options" ;; esac'
    yield '    COMPREPLY=($(compgen -W "$values" -- "$word"))'
    yield "}"
    yield "complete -o bashdefault -o default -F _bigvit bigvit"


def _zsh(parser: Parser, recipes: str) -> Iterator[str]:
    yield "_bigvit() {"
    yield "    local -a commands options values"
    yield f"    local -a recipes=({recipes})"
    yield "    if (( CURRENT == 2 )); then"
    yield "        commands=("
    for name, command in parser.commands.items():
        yield f"            '{name}:{_plain(str(command.description))}'"
    yield "        )"
    yield "        _describe 'command' commands; return"
    yield "    fi"
    yield '    case "$words[2]" in'
    for name, command in parser.commands.items():
        told = " ".join(f"'{o}:{_plain(text)}'" for o, text in _options(command).items())
        values = "$recipes" if _takes_recipes(command) else " ".join(_values(command))
        yield f"        {name}) options=({told}) values=({values}) ;;"
    yield "    esac"
    yield "    if [[ \"$PREFIX\" == -* ]]; then _describe -o 'option' options; return; fi"
    yield "    (( $#values )) && compadd -a values"
    yield "    _files"
    yield "}"
    yield "compdef _bigvit bigvit"


def _fish(parser: Parser, recipes: str) -> Iterator[str]:
    yield f"set -l commands {' '.join(parser.commands)}"
    yield f"set -g __bigvit_recipes {recipes}"
    first = 'complete -c bigvit -n "not __fish_seen_subcommand_from $commands"'
    for name, command in parser.commands.items():
        yield f"{first} -f -a {name} -d '{_plain(str(command.description))}'"
    for name, command in parser.commands.items():
        here = f'complete -c bigvit -n "__fish_seen_subcommand_from {name}"'
        if _takes_recipes(command):
            yield f"{here} -a '$__bigvit_recipes'"
        elif values := " ".join(_values(command)):
            yield f"{here} -f -a '{values}'"
        for option, text in _options(command).items():
            yield f"{here} -l {option[2:]}" + (f" -d '{_plain(text)}'" if text else "")
