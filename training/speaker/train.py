"""Train the demo's speaker model: material in, a folder in WeSpeaker's layout out, within a given number of minutes.

    python -m training.speaker.train --material /tmp/material.pt --output training/runs/speaker --minutes 8

The output folder gets the averaged weights in half precision (avg_model.pt), config.yaml, the mean embedding of the
training voices (mean_vec.npy), train_log.jsonl, dev.json, and resume.pt with everything that `--resume` needs. SIGTERM
ends the training early, with all of that written.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from training.budget import Budget
from training.corpus import SAMPLE_RATE
from training.files import save_torch
from training.masking import SpecAugment
from training.precision import full_precision
from training.speaker.distortion import Distortion
from training.speaker.losses import MarginSoftmax, PairLoss
from training.speaker.material import Material, is_development, make_material
from training.speaker.recipe import SpeakerRecipe, read_speaker_recipe
from training.speaker.tapes import Tapes
from training.speaker.verification import VerificationSet, dev_sets, embed_waveforms, evaluate
from tritone.families.wespeaker.config import parse_config
from tritone.families.wespeaker.features import SpeakerFeatures
from tritone.families.wespeaker.front_end import manifest_features
from tritone.families.wespeaker.model import build_network

LOG_STEPS = 50
CROP_STEP_S = 0.5  # so that batches have few lengths, for which cuDNN searches its kernels once
MEAN_SECONDS = 10.0  # of a recording, for the mean embedding
MAX_BAD_STEPS = 30  # in a row, with gradients that are not finite


class SpeakerTrainer:
    """Holds the run's state; `run` trains until the budget is spent."""

    def __init__(
        self,
        config: Mapping[str, Any],
        recipe: SpeakerRecipe,
        material: Material,
        output: Path,
        device: torch.device,
        *,
        train_on_dev: bool = False,
        hold_out: bool = True,
    ) -> None:
        self.config, self.recipe, self.material = config, recipe, material
        self.output, self.device = output, device
        settings = parse_config(config)
        self.network = build_network(settings).to(device)
        if recipe.channels_last:
            torch.nn.Module.to(self.network, memory_format=torch.channels_last)  # type: ignore[call-overload]
        features = manifest_features(settings.features)
        self.front_end = SpeakerFeatures(features, settings.features.sample_rate).to(device)
        self.averaged = copy.deepcopy(self.network).eval().requires_grad_(False)
        develop = [is_development(recording, hold_out=hold_out) for recording in material.recordings]
        self.chosen = [index for index, held in enumerate(develop) if train_on_dev or not held]
        self.tapes = Tapes(material, self.chosen, shares=recipe.shares, speed_share=recipe.speed_share, device=device)
        self.sets = dev_sets(material, [index for index, held in enumerate(develop) if held])
        self.distortion = Distortion(material, recipe.augment, device)
        self.masking = SpecAugment(
            freq_masks=recipe.freq_masks,
            freq_mask_bins=recipe.freq_mask_bins,
            time_masks=recipe.time_masks,
            time_mask_share=recipe.time_mask_share,
        )
        dim = settings.network.embed_dim
        self.softmax = MarginSoftmax(dim, self.tapes.num_classes, scale=recipe.scale, directions=recipe.directions).to(
            device
        )
        self.pair_loss = PairLoss().to(device)
        self.parameters = [
            parameter for part in (self.network, self.softmax, self.pair_loss) for parameter in part.parameters()
        ]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [each for each in self.parameters if each.dim() > 1], "weight_decay": recipe.weight_decay},
                {"params": [each for each in self.parameters if each.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=0.0,
            fused=device.type == "cuda",
        )
        self.step = 0
        self.stopping = False
        self.rng = np.random.default_rng([recipe.seed, 7])
        output.mkdir(parents=True, exist_ok=True)

    # -- state ----------------------------------------------------------------------------------------------------

    def resume(self, path: Path) -> None:
        """Go on where `resume.pt` was written."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        for name in ("network", "averaged", "softmax", "pair_loss", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step = int(state["step"])

    def save(self, rates: Mapping[str, Any]) -> None:
        """Write the output folder. Each file is complete or absent."""
        save_torch(half(self.averaged.state_dict()), self.output / "avg_model.pt")
        settings = {name: value for name, value in self.config.items() if name not in ("recipe", "train_on_dev")}
        (self.output / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        (self.output / "dev.json").write_text(json.dumps({"step": self.step, **rates}, indent=1), encoding="utf-8")
        parts = ("network", "averaged", "softmax", "pair_loss", "optimizer")
        state = {name: getattr(self, name).state_dict() for name in parts}
        save_torch({**state, "step": self.step}, self.output / "resume.pt")

    # -- training -------------------------------------------------------------------------------------------------

    def learning_rate(self, share: float) -> float:
        """Linear warm-up in steps, cosine descent in shares of the budget."""
        recipe = self.recipe
        descent = recipe.final_lr + (recipe.peak_lr - recipe.final_lr) * 0.5 * (1.0 + math.cos(math.pi * min(1, share)))
        return descent * min(1.0, (self.step + 1) / recipe.warmup_steps)

    def train_step(self, share: float) -> dict[str, Tensor]:
        """One update; a gradient that is not finite changes nothing."""
        recipe, device = self.recipe, self.device
        steps = np.arange(round((recipe.crop_s[1] - recipe.crop_s[0]) / CROP_STEP_S) + 1)
        seconds = recipe.crop_s[0] + CROP_STEP_S * self.rng.choice(steps)
        with torch.no_grad(), full_precision():
            clean, labels = self.tapes.draw(recipe.classes, int(seconds * SAMPLE_RATE))
            untouched = torch.rand(len(clean), 1, device=device) < recipe.clean_share
            waveforms = torch.where(untouched, clean, self.distortion(clean))
            lengths = torch.full((len(clean),), clean.shape[1], device=device)
            features, frames = self.front_end(waveforms, lengths)
            features = self.masking(features, frames, torch.zeros((), device=device))
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.half_precision):
            embeddings = self.network(features, frames)
        embeddings = embeddings.float()
        loss, correct = self.softmax(embeddings, labels, recipe.margin_at(share))
        values = {"softmax": loss.detach(), "correct": correct.detach()}
        if recipe.pair_weight:
            pairs = self.pair_loss(*embeddings.chunk(2))
            loss = loss + recipe.pair_weight * pairs
            values["pairs"] = pairs.detach()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        values["norm"] = torch.nn.utils.clip_grad_norm_(self.parameters, recipe.grad_clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(share)
        if bool(torch.isfinite(values["norm"])):
            self.optimizer.step()
            self._average()
        return values

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.recipe.ema_decay, (1.0 + self.step) / (10.0 + self.step))
        pairs = list(zip(self.averaged.state_dict().values(), self.network.state_dict().values(), strict=True))
        moving = [(old, new) for old, new in pairs if old.is_floating_point()]
        torch._foreach_lerp_([old for old, _ in moving], [new for _, new in moving], 1.0 - decay)
        for old, new in pairs:
            if not old.is_floating_point():
                old.copy_(new)

    def embed(self, waveforms: list[Tensor]) -> np.ndarray:
        """Embeddings by the averaged weights."""
        searching = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = False  # every batch has a length of its own
        try:
            with full_precision():
                return embed_waveforms(self.front_end, self.averaged, waveforms, self.device)
        finally:
            torch.backends.cudnn.benchmark = searching

    def evaluate(self) -> dict[str, float]:
        """Equal error rates of the development sets in percent."""
        rates = evaluate(self.sets, lambda waveforms: self.embed(list(waveforms)))
        return {name: round(100.0 * rate, 2) for name, rate in rates.items()}

    def mean_embedding(self) -> np.ndarray:
        """(dim,) mean over training speakers of the mean over their recordings, as they were recorded."""
        of_speaker: dict[str, list[int]] = {}
        for index in self.chosen:
            of_speaker.setdefault(self.material.recordings[index].speaker, []).append(index)
        indices = [index for each in of_speaker.values() for index in each[:10]]
        limit = int(MEAN_SECONDS * SAMPLE_RATE)
        embeddings = dict(
            zip(indices, self.embed([self.material.waveform(index)[:limit] for index in indices]), strict=True)
        )
        means = [np.mean([embeddings[index] for index in each[:10]], axis=0) for each in of_speaker.values()]
        return np.mean(means, axis=0, dtype=np.float64).astype(np.float32)

    def run(self, budget: Budget) -> dict[str, float]:
        """Train until the budget is spent or `stopping` is set; evaluates and saves on the way and at the end."""
        self.network.train()
        window: list[dict[str, Tensor]] = []
        last_log, last_eval, bad, begun = time.monotonic(), time.monotonic(), 0, self.step
        while (share := budget.share(self.step - begun)) < budget.last and not self.stopping:
            if self.step % self.recipe.shuffle_steps == 0:
                self.tapes.shuffle()
            record = self.train_step(share)
            bad = 0 if bool(torch.isfinite(record["norm"])) else bad + 1
            if bad >= MAX_BAD_STEPS:
                raise FloatingPointError(f"step {self.step}: {bad} gradients in a row were not finite; lower peak_lr")
            self.step += 1
            window.append(record)
            if self.step % LOG_STEPS == 0:
                now = time.monotonic()
                means = {name: round(float(torch.stack([row[name] for row in window]).mean()), 4) for name in record}
                rate = round(len(window) / (now - last_log), 2)
                lr = round(self.learning_rate(share), 7)
                self._log({"step": self.step, "share": round(share, 4), "lr": lr, **means, "steps_per_s": rate})
                window, last_log = [], now
            if time.monotonic() - last_eval > budget.eval_s:
                self.save(self._report())
                last_eval = last_log = time.monotonic()
                window = []
        rates = self._report()
        self.save(rates)
        np.save(self.output / "mean_vec.npy", self.mean_embedding())
        return rates

    def _report(self) -> dict[str, float]:
        rates = self.evaluate()
        self._log({"step": self.step, "dev_eer": rates}, always=True)
        return rates

    def _log(self, row: Mapping[str, Any], *, always: bool = False) -> None:
        with (self.output / "train_log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if always or self.step % (10 * LOG_STEPS) == 0 or self.step <= LOG_STEPS:
            print(self.output.name, " ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def half(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and kernels in half precision; what norms hold stays as it is."""
    return {
        name: (value.half() if value.is_floating_point() and value.dim() > 1 else value).detach().cpu().clone()
        for name, value in state.items()
    }


def describe(sets: Mapping[str, VerificationSet]) -> str:
    """How many speakers and pairs the sets have."""
    return "; ".join(
        f"{name}: {len(set(made.speakers))} speakers, {int(made.targets.sum())} target and "
        f"{int((~made.targets).sum())} other pairs"
        for name, made in sets.items()
    )


def main(argv: list[str] | None = None) -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).parents[1] / "demo-speaker.yaml", help="settings")
    parser.add_argument("--material", type=Path, help="file that training.speaker.material wrote")
    parser.add_argument("--packs", type=Path, nargs="+", help="or the packs themselves")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8.0, help="wall clock for everything, loading included")
    parser.add_argument("--steps", type=int, help="stop after this many steps, if the minutes last that long")
    parser.add_argument("--eval-seconds", type=float, default=60.0, help="how often the dev sets are scored")
    parser.add_argument("--resume", type=Path, help="resume.pt of a run that was stopped")
    parser.add_argument(
        "--part",
        type=float,
        nargs=2,
        default=(0.0, 1.0),
        metavar=("FROM", "TO"),
        help="which part of the schedule these minutes are, where --resume puts a run together of several",
    )
    parser.add_argument(
        "--train-on-dev", action="store_true", help="train on the development speakers too, once settings are fixed"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="override recipe settings")
    parser.add_argument("--model", help="network in place of the settings file's, such as ResNet18")
    parser.add_argument("--model-args", nargs="*", default=[], metavar="NAME=VALUE", help="its arguments")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args(argv)

    config = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))
    if arguments.model:
        config["model"] = arguments.model
    if arguments.model_args:
        config["model_args"] = _settings(arguments.model_args)
    recipe = read_speaker_recipe({**config.get("recipe", {}), **_settings(arguments.set)})
    device = torch.device(arguments.device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = device.type == "cuda"
    torch.manual_seed(recipe.seed)
    material = Material.load(arguments.material) if arguments.material else make_material(arguments.packs)
    trainer = SpeakerTrainer(config, recipe, material, arguments.output, device, train_on_dev=arguments.train_on_dev)
    if arguments.resume is not None:
        trainer.resume(arguments.resume)
    count = sum(parameter.numel() for parameter in trainer.network.parameters())
    print(f"{arguments.output.name}: {config['model']} {config['model_args']}, {count / 1e6:.2f} M parameters")
    print(f"{len(trainer.tapes.speakers)} speakers, {trainer.tapes.num_classes} classes; {describe(trainer.sets)}")
    print(f"ready after {time.monotonic() - started:.0f} s", flush=True)

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
        trainer.run(budget)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{arguments.output}: step {trainer.step}, {time.monotonic() - started:.0f} s", flush=True)


def _settings(items: list[str]) -> dict[str, Any]:
    pairs = (item.partition("=") for item in items)
    return {name: yaml.safe_load(value) for name, _, value in pairs}


if __name__ == "__main__":
    main()
