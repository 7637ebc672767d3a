"""`bigvit export`: a trained model for the rest of the world."""

import argparse
from pathlib import Path

from bigvit.cli import arguments


def add(add: arguments.Add) -> None:
    """Add the command."""
    command = add("export", _export, "write a checkpoint's weights as a folder that timm loads")
    arguments.add_run_or_one(command)
    command.add_argument("--out", type=Path, help="folder to write (default: export/ of the run)")
    arguments.add_ema(command)
    arguments.add_image_size(command)
    text = "put ResMLP's affine maps into the linear layers beside them"
    command.add_argument("--fold", action="store_true", help=text)
    text = "the trunk alone, for timm's features_only=True (default of --out: backbone/)"
    command.add_argument("--backbone", action="store_true", help=text)
    text = "of the weights, as the hub names it, such as apache-2.0; the model card says it"
    command.add_argument("--license", help=text)
    command.add_argument("--onnx", action="store_true", help="write model.onnx, too")
    text = "upload it to the Hugging Face hub, where it is public unless it was made private"
    command.add_argument("--push", metavar="[USER/]NAME", help=text)


def _export(options: argparse.Namespace) -> None:
    size = arguments.size_of(options)
    default = "backbone" if options.backbone else "export"
    folder = options.out or arguments.run_folder_of(options.path) / default
    if options.backbone and options.onnx:
        raise ValueError("--onnx: it is of logits, and --backbone has no head; leave one out")
    arguments.refuse_no_checkpoint(options.path)
    if options.onnx:
        from bigvit.export.onnx import refuse_missing

        refuse_missing()
    if options.license is not None:
        from bigvit.export.hub import check_license

        check_license(options.license)
    repo = None
    if options.push is not None:
        from bigvit.export import hub

        repo = hub.whole_name(options.push)
    from bigvit.export.folder import FILES, export

    more = {"license": options.license, "onnx": options.onnx, "repo": repo, "say": print}
    more |= {"backbone": options.backbone}
    try:
        print(export(options.path, folder, size, options.ema, options.fold, **more))
    except OSError as error:
        raise ValueError(f"--out {folder} cannot be written: {error}") from None
    if repo is not None:
        from bigvit.export import hub

        print(
            hub.push(
                repo,
                folder,
                FILES,
                f"Export of {arguments.run_folder_of(options.path).resolve().name}",
            )
        )
