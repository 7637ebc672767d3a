"""What changes no result: where, how fast, and how it is watched. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from bigvit.recipe.bounds import Batch, Bound, Length, Share, Side, T, Workers
from bigvit.recipe.recipe import Recipe

__all__ = ["Command", "Run"]

Count = Annotated[T, Bound(1, 10**9)]
Tracker = Literal["wandb", "mlflow", "trackio", "comet_ml", "dvclive", "aim"]
Metric = Literal[
    "top1",
    "top5",
    "test_loss",
    "miou",
    "box_ap",
    "mask_ap",
    "ema_top1",
    "ema_top5",
    "ema_test_loss",
    "ema_miou",
    "ema_box_ap",
    "ema_mask_ap",
]
Jump = Annotated[float | None, Bound(1.0, 1e9, above=True)]
Seconds = Annotated[float, Bound(1.0, 86_400.0)]  # to a day
Minutes = Annotated[float | None, Bound(0.0, 5_256_000.0, above=True)]  # to ten years

USUAL = {"deepspeed": "zero1", "fsdp2": "full", "fairscale": "oss", "single": ""}
"""What `--sharding` is where it is left out, by engine."""


@dataclass(frozen=True)
class Run:
    run_dir: Path | None = None  # run folder; None: runs/NAME
    lock: bool = True  # lock the run folder; without, go on where the file system has no locks
    data_root: Path | None = None  # folder of the data set; bundled data need none
    # file that says a coarser class of each class, where the recipe's data.level is map: a JSON
    # object, or CSV of two columns
    classes_map: Path | None = None
    init: str | None = None  # weights to start from: a run, checkpoint, export, file, or timm:NAME
    init_ema: bool = False  # start from the average of the weights that lies beside them there
    # its positions down and across, where it cannot say
    init_grid: Side[tuple[int, int] | None] = None
    # weights of the recipe's teacher, if it has one: given as those of --init
    teacher: str | None = None
    teacher_ema: bool = False  # take the average of the weights that lies beside them there
    # host: its weights are cut over the ranks of each host, and gathered block by block
    teacher_sharding: Literal["none", "host"] = "none"
    # folder of the label maps that the recipe's objectives learn from (`bigvit label-maps`)
    label_maps: Path | None = None
    bad_images: Share[float] = 0.001  # share of unreadable images at which the run stops
    resume: str | None = None  # 'auto' (the newest checkpoint of the run folder, if any) or a path
    # single: one plain, unsharded process
    engine: Literal["deepspeed", "fsdp2", "fairscale", "single"] = "deepspeed"
    # name in ds_configs/ or path of a DeepSpeed JSON; full, grads, node; oss, sdp; None: the first
    sharding: str | None = None
    # images a rank computes at once; None: the batch over the ranks
    micro_batch: Batch[int | None] = None
    # share of the blocks recomputed in backward; 1 for all
    checkpoint_activations: Share[float] = 0.0
    compile: bool = False  # compile each block with torch.compile; not at ZeRO stage 3
    # kernels that sum in a fixed order: on the same GPUs the same bits again, slower
    deterministic: bool = False
    # data processes a rank; None: what the cores allow, 12 at most
    workers: Workers[int | None] = None
    # where 3-Augment and jitter are done, to the same bytes; auto: on the device, if it is a GPU
    augment_on: Literal["auto", "worker", "device"] = "auto"
    log_every: Count[int] = 10  # updates between log lines
    tracker: tuple[Tracker, ...] = ()  # experiment trackers that are told what is logged
    # trace this update and the two after it by torch's profiler, into the run folder
    profile: Length[int | None] = None
    log_norms: bool = False  # also log norms of gradients, weights and LayerScales, by block
    loss_jump: Jump = None  # stop before an update whose loss is this many times the mean
    # rollback: go back to the newest good checkpoint, and skip the batches of the jump
    on_jump: Literal["stop", "rollback"] = "stop"
    rollbacks: Count[int] = (
        5  # times that a run rolls back at most, resumes included; then it stops
    )
    # batches never to be trained on, as 40-42,57, by the numbers that the log gives them
    skip_batches: str | None = None
    evaluate_every: Count[int] = 1  # epochs between evaluations; the last epoch is always evaluated
    evaluate_ema: bool = False  # also evaluate the average of the weights
    # updates between checkpoints; the last update is always saved
    checkpoint_every: Count[int] = 1000
    keep: Count[int] = 3  # checkpoints kept, the newest
    # checkpoints at a multiple of this many updates are kept, too
    keep_every: Count[int | None] = None
    # keep the best checkpoint by this number of the evaluations, too: RUN@best
    keep_best: Metric | None = None
    # stop, and be done, after this many evaluations without a better one (--keep-best)
    patience: Count[int | None] = None
    background_save: bool = True  # write checkpoints from a copy, while training goes on
    save_failure: Literal["stop", "continue"] = "stop"  # where a checkpoint cannot be written
    allow_change: tuple[str, ...] = ()  # fields that may differ from the run that is gone on with
    # stop at this update as on request: checkpoint, exit code 85
    stop_after: Length[int | None] = None
    timeout: Seconds = 600.0  # seconds after which a rank that does not answer ends the run
    max_minutes: Minutes = None  # stop after this time as on request, the start included

    @property
    def arrangement(self) -> str:
        """The name of the sharding; of the engine's usual one where none was given."""
        return self.sharding or USUAL[self.engine]


@dataclass(frozen=True)
class Command:
    """What is trained, and how it is run: a command line, parsed."""

    name: str
    recipe: Recipe
    run: Run
    overrides: tuple[str, ...]  # the command line after the name, as given
