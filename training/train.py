"""Train a demo model: packs in, a folder in the layout of WeNet, icefall or QuartzNet out, within given minutes.

    python -m training.train --packs training/data/*.zip --output training/runs/first --minutes 9

The output folder gets the averaged weights and what belongs to them (final.pt, train.yaml, units.txt and global_cmvn;
pretrained.pt, tokens.txt and bpe.model; or quartznet.pt and quartznet.yaml), train_log.jsonl, dev.json, and resume.pt
with everything that `--resume` needs. SIGTERM ends the training early, with all of that written.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch.utils.data import DataLoader

from training.augment import Augmenter
from training.budget import Budget
from training.corpus import SAMPLE_RATE, Corpus
from training.dataset import Batch, BatchMaker, Planner
from training.files import save_torch
from training.graphs import GraphedStep
from training.masking import SpecAugment
from training.precision import full_precision
from training.recipe import Recipe, read_recipe
from training.scoring import dev_sets, evaluate, summary
from training.systems import System, make_system
from training.words import WordBank

LOG_STEPS = 50
PREPARE_BATCHES = 12  # shown to the system before training
MAX_BAD_STEPS = 30  # in a row, with gradients that are not finite
FOREVER = 10**9  # batches


class Trainer:
    """Holds the run's state; `run` trains until the budget is spent."""

    def __init__(
        self, system: System, recipe: Recipe, maker: BatchMaker, output: Path, device: torch.device, *, grad_clip: float
    ) -> None:
        self.system, self.recipe, self.maker, self.output, self.device = system, recipe, maker, output, device
        self.model, self.grad_clip = system.model, grad_clip
        self.masking = SpecAugment(
            freq_masks=recipe.freq_masks,
            freq_mask_bins=recipe.freq_mask_bins,
            time_masks=recipe.time_masks,
            time_mask_share=recipe.time_mask_share,
        )
        self.optimizer = torch.optim.AdamW(
            _parameter_groups(self.model, recipe.weight_decay),
            lr=0.0,
            betas=(0.9, 0.98),
            fused=device.type == "cuda",
        )
        self.state_path = output / "resume.pt"
        self.step = self.first_step = self.warm_step = 0  # warm_step: where the optimiser began
        self.fewest: float = np.inf  # errors on the development set `best_on` so far
        self.averaged: dict[str, torch.Tensor] = {}
        self._restart_average()
        self.stopping = False
        self.graphed = None
        if recipe.fixed_shapes and device.type == "cuda":
            self.graphed = GraphedStep(self.model, self._compute, device)
        self.rng = np.random.default_rng([recipe.seed, 3])
        output.mkdir(parents=True, exist_ok=True)

    # -- state ----------------------------------------------------------------------------------------------------

    def start_from(self, folder: Path) -> None:
        """Take what an earlier run wrote into its output folder; the optimiser starts anew."""
        self.system.load(folder)
        self._restart_average()

    def resume(self, path: Path) -> None:
        """Go on where `resume.pt` was written: weights, average, optimiser and step."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.averaged = state["averaged"]
        self.step = self.first_step = int(state["step"])
        self.warm_step = int(state.get("warm_step", self.step))
        self.fewest = state.get("fewest", np.inf)
        self.system.load_extra_state(state["extra"])

    def save(self, dev: dict[str, Any] | None = None) -> None:
        """Write the output folder, weights only if they are the best so far. Each file is complete or absent."""
        if self._is_best(dev or {}):
            self.system.save(self.output, {name: value.detach().cpu().clone() for name, value in self.averaged.items()})
            if dev is not None:
                (self.output / "dev.json").write_text(
                    json.dumps({"step": self.step, "sets": dev}, indent=1), encoding="utf-8"
                )
        state = {
            "model": self.model.state_dict(),
            "averaged": self.averaged,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "warm_step": self.warm_step,
            "fewest": self.fewest,
            "extra": self.system.extra_state(),
        }
        save_torch(state, self.state_path)

    def _is_best(self, dev: dict[str, Any]) -> bool:
        """Whether no weights before made fewer errors on the set that decides; always where none does."""
        modes = dev.get(self.recipe.best_on)
        if modes is None:
            return True
        errors = sum(mode["errors"] for mode in modes.values())
        best = errors <= self.fewest
        self.fewest = min(errors, self.fewest)
        return best

    def _restart_average(self) -> None:
        self.averaged = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    # -- training -------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Show the system some batches that training does not use; what it derives from them is not averaged."""
        self.system.prepare(self._features(self.maker[FOREVER + number]) for number in range(PREPARE_BATCHES))
        for name, value in self.model.named_buffers():
            if name in self.averaged:
                self.averaged[name] = value.detach().clone()

    def _features(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        waveforms = batch.waveforms.to(self.device, non_blocking=True).float() / 32768.0
        num_samples = batch.num_samples.to(self.device, non_blocking=True)
        with torch.no_grad(), full_precision():
            feats, lengths = self.system.features(waveforms, num_samples)
        return feats, lengths

    def learning_rate(self, share: float) -> float:
        """Linear warm-up in steps, cosine descent in shares of the budget."""
        recipe = self.recipe
        descent = recipe.final_lr + (recipe.peak_lr - recipe.final_lr) * 0.5 * (1.0 + np.cos(np.pi * min(1.0, share)))
        return float(descent * min(1.0, (self.step - self.warm_step + 1) / recipe.warmup_steps))

    def train_step(self, batch: Batch, share: float) -> dict[str, Any]:
        """One update; returns tensors and numbers to log. A gradient that is not finite changes nothing."""
        chunk, left = self.system.draw_chunk(self.rng)
        if self.graphed is None:
            self.optimizer.zero_grad(set_to_none=True)
            losses = self._compute(batch, chunk, left)
        else:
            losses = self.graphed(batch, chunk, left)
        lr = self.learning_rate(share)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        finite = bool(torch.isfinite(losses["norm"]))
        if finite:
            self.optimizer.step()
            self._average()
        return {**losses, "lr": lr, "finite": finite, "chunk": chunk}

    def _compute(self, batch: Batch, chunk: int, left: int) -> dict[str, torch.Tensor]:
        """Add the batch's gradients to the parameters', and clip them; returns losses and the norm before."""
        feats, lengths = self._features(batch)
        feats = self.masking(feats, lengths, self.system.mask_value(feats, lengths))
        losses = self.system.losses(feats, lengths, batch, chunk, left, self.rng)
        losses["loss"].backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        return {**{name: value.detach() for name, value in losses.items()}, "norm": norm}

    @torch.no_grad()
    def _average(self) -> None:
        taken = self.step - self.warm_step
        decay = min(self.recipe.ema_decay, (1.0 + taken) / (10.0 + taken))
        # Running statistics of norms are averaged as weights are; what never changes stays what it is.
        current = {name: value for name, value in self.model.state_dict().items() if value.is_floating_point()}
        torch._foreach_lerp_([self.averaged[name] for name in current], list(current.values()), 1.0 - decay)

    def evaluate(self, sets: dict[str, Any]) -> dict[str, Any]:
        """Score the averaged weights."""
        own = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        self.model.load_state_dict(self.averaged)
        self.model.eval()
        with full_precision():
            results = evaluate(sets, self.system.modes())
        self.model.train()
        self.model.load_state_dict(own)
        return results

    def run(self, batches: Any, sets: dict[str, Any], budget: Budget) -> None:
        """Train until the budget is spent or `stopping` is set; evaluates and saves on the way and at the end."""
        self.model.train()
        window: list[dict[str, Any]] = []
        last_log, last_eval, bad = time.monotonic(), time.monotonic(), 0
        audio = 0.0
        for batch in batches:
            share = budget.share(self.step - self.first_step)
            if share >= budget.last or self.stopping:
                break
            record = self.train_step(batch, share)
            bad = 0 if record["finite"] else bad + 1
            if bad >= MAX_BAD_STEPS:
                raise FloatingPointError(
                    f"step {self.step}: {bad} gradients in a row were not finite; lower recipe.peak_lr"
                )
            self.step += 1
            audio += float(batch.num_samples.sum()) / SAMPLE_RATE
            window.append(
                {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in record.items()}
            )
            if self.step % LOG_STEPS == 0:
                now = time.monotonic()
                self._log(window, share, audio / (now - last_log), len(window) / (now - last_log))
                window, audio, last_log = [], 0.0, now
            if sets and time.monotonic() - last_eval > budget.eval_s:
                dev = self.evaluate(sets)
                self._report(dev)
                self.save(dev)
                last_eval = last_log = time.monotonic()
                window, audio = [], 0.0
        dev = self.evaluate(sets) if sets else {}
        self._report(dev)
        self.save(dev)

    def _log(self, window: list[dict[str, Any]], share: float, audio_rate: float, step_rate: float) -> None:
        names = [name for name in window[0] if isinstance(window[0][name], torch.Tensor)]
        row: dict[str, Any] = {"step": self.step, "share": round(share, 4), "lr": window[-1]["lr"]}
        for name in names:
            row[name] = round(float(torch.stack([record[name] for record in window]).mean()), 4)
        row["skipped"] = sum(not record["finite"] for record in window)
        row["steps_per_s"], row["audio_s_per_s"] = round(step_rate, 2), round(audio_rate)
        self._write_log(row)
        if self.step % (4 * LOG_STEPS) == 0 or self.step <= 4 * LOG_STEPS:
            print(" ".join(f"{name} {value}" for name, value in row.items()), flush=True)

    def _report(self, dev: dict[str, Any]) -> None:
        names = "/".join(next(iter(dev.values()), {}))
        print(f"step {self.step} dev WER % ({names}): {summary(dev)}", flush=True)
        rates = {name: {mode: value["wer"] for mode, value in modes.items()} for name, modes in dev.items()}
        self._write_log({"step": self.step, "dev": rates})

    def _write_log(self, row: dict[str, Any]) -> None:
        with (self.output / "train_log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and position biases do not."""
    decayed = [value for name, value in model.named_parameters() if value.dim() > 1 and "pos_bias" not in name]
    kept = [value for name, value in model.named_parameters() if value.dim() <= 1 or "pos_bias" in name]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


def main(argv: list[str] | None = None) -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("demo.yaml"), help="settings")
    parser.add_argument("--packs", type=Path, nargs="+", required=True)
    parser.add_argument("--words", type=Path, help="word times that training.align wrote; adds the share an4_words")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="wall clock for everything, loading included")
    parser.add_argument(
        "--part",
        type=float,
        nargs=2,
        default=(0.0, 1.0),
        metavar=("FROM", "TO"),
        help="which part of the schedule these minutes are, where --resume puts a run together of several",
    )
    parser.add_argument("--steps", type=int, help="stop after this many steps, if the minutes last that long")
    parser.add_argument("--eval-seconds", type=float, default=90.0, help="how often the dev sets are scored")
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches; 0 makes them here")
    parser.add_argument("--init", type=Path, help="output folder of an earlier run to start from")
    parser.add_argument("--state", type=Path, help="where to write resume.pt, if not into the output folder")
    parser.add_argument("--resume", type=Path, help="resume.pt of a run that was stopped")
    parser.add_argument(
        "--train-on-dev", action="store_true", help="train on the dev parts too, once settings are fixed"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="override recipe settings")
    parser.add_argument("--smoke", action="store_true", help="20 steps on small batches, to see that everything works")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(argv)

    config = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    recipe_values = config.setdefault("recipe", {})
    for item in arguments.set:
        name, _, value = item.partition("=")
        recipe_values[name] = yaml.safe_load(value)
    if arguments.smoke:
        recipe_values.update(batch_seconds=20, warmup_steps=5)
        arguments.steps, arguments.workers = arguments.steps or 20, 0
    recipe = read_recipe(recipe_values)

    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(recipe.seed)
    system = make_system(config, recipe, device)
    corpus = Corpus.load(arguments.packs, {"train", "dev"} if arguments.train_on_dev else {"train"})
    sets = dev_sets(Corpus.load(arguments.packs, {"dev"}))
    if arguments.smoke:
        sets = {name: utterances[:5] for name, utterances in sets.items()}
    augmenter = Augmenter(corpus, recipe.augment, recipe.seed)
    bank = None if arguments.words is None else WordBank.load(arguments.words, corpus)
    planner = Planner(corpus, recipe.mixture, augmenter, system.units, bank)
    # A later run from the same weights should not see the same batches again.
    seed = recipe.seed + (1 if arguments.init else 0)
    maker = BatchMaker(planner, batch_seconds=recipe.batch_seconds, seed=seed, fixed_shapes=recipe.fixed_shapes)
    hours, seconds = len(corpus.samples) / SAMPLE_RATE / 3600, time.monotonic() - started
    print(f"loaded {len(corpus)} recordings, {hours:.2f} h, in {seconds:.0f} s", flush=True)

    trainer = Trainer(system, recipe, maker, arguments.output, device, grad_clip=float(config.get("grad_clip", 1.0)))
    trainer.state_path = arguments.state or trainer.state_path
    if arguments.resume is not None:
        trainer.resume(arguments.resume)
    elif arguments.init is not None:
        trainer.start_from(arguments.init)
    loader = DataLoader(
        maker,
        batch_size=None,
        sampler=range(trainer.step, FOREVER),
        num_workers=arguments.workers,
        prefetch_factor=4 if arguments.workers else None,
        pin_memory=device.type == "cuda",
        multiprocessing_context="fork" if arguments.workers else None,
    )
    batches = iter(loader)  # workers fork and start to work while the system is prepared
    trainer.prepare()
    count = sum(parameter.numel() for parameter in system.model.parameters())
    print(f"{count / 1e6:.2f} M parameters on {device}, ready after {time.monotonic() - started:.0f} s", flush=True)

    def stop(*_: object) -> None:
        trainer.stopping = True

    first, last = arguments.part
    budget = Budget(
        started=started,
        minutes=arguments.minutes,
        steps=arguments.steps,
        eval_s=arguments.eval_seconds,
        first=first,
        last=last,
    )
    before = signal.signal(signal.SIGTERM, stop)
    try:
        trainer.run(batches, sets, budget)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{arguments.output}: step {trainer.step}, {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
