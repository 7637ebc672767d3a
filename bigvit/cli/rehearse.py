"""`bigvit rehearse`: one rank's part of a large run, here. No torch here."""

import argparse
import json
from pathlib import Path
from typing import Annotated, Any

from bigvit.cli.arguments import A_RECIPE, Add, refuse_unwritable
from bigvit.recipe.bounds import Bound

Count = Annotated[int, Bound(1, 2**17)]
Rank = Annotated[int, Bound(0, 2**17 - 1)]


def add(add: Add) -> None:
    """Add the command."""
    text = "do one rank's part of a large run here, without its devices and the other ranks"
    command = add("rehearse", _rehearse, text, allow_abbrev=False)
    command.add_argument("recipe", help=f"{A_RECIPE}; then overrides as in training")
    command.add_argument("--ranks", number=Count, required=True, help="of the real run")
    command.add_argument("--per-node", number=Count, help="of them on a host (8, or all)")
    command.add_argument("--rank", number=Rank, default=0, help="whose part (0)")
    command.add_argument("--out", type=Path, metavar="FILE", help="where the certificate goes")
    command.add_argument("--json", action="store_true", help="print the certificate, too")
    command.set_defaults(overrides=[])


def _rehearse(options: argparse.Namespace) -> int:
    from bigvit.rehearse.certificate import asked, certificate

    of = asked([options.recipe, *options.overrides], options.ranks, options.per_node, options.rank)
    if options.out is not None:
        refuse_unwritable(options.out)
    from bigvit.rehearse.whole import rehearsed  # slow

    found, figures = rehearsed(of.command, of.layout, of.per_node, of.rank)
    whole = certificate(of, found, figures)
    if options.out is not None:
        from bigvit.checkpoint.files import write_json

        write_json(options.out, whole)
    if options.json:
        print(json.dumps(whole, indent=2))
    else:
        _print(whole, options.out)
    return 1 if found.failed else 0


def _print(whole: dict[str, Any], out: Path | None) -> None:
    for word, rows in (("proved", whole["proved"]), ("WRONG", whole["failed"])):
        for row in rows:
            print(f"{word:<10} {row['what']}\n{'':<10} by {row['how']}")
    for text in whole["not_proved"]:
        print(f"not proved {text}")
    print(
        f"rehearsed rank {whole['rank']} of {whole['ranks']} in {whole['seconds']['all']:.0f} s "
        f"and {whole['memory'] / 1e9:.1f} GB"
        + (f"; the certificate is {out}" if out else "; --out FILE keeps the certificate")
    )
