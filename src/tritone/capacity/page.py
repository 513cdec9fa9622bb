"""A plan as tables, Markdown and one page.

Plan  ->  tables_of    ->  terminal, Markdown
      ->  write_plan   ->  a folder with all forms: plan.json, plan.md, plan.html, plots/*.png
"""

import json
from collections.abc import Sequence
from pathlib import Path

from tritone.bench.plots import Plot
from tritone.capacity.load import HOUR_S
from tritone.capacity.plan import Plan
from tritone.capacity.plots import plots_of
from tritone.errors import InputError
from tritone.report.page import render
from tritone.report.table import Cell, Column, Table, Tone, escape_markdown

SIZES = [
    Column("year", "year"),
    Column("utterances_per_hour", "utterances /h", 0),
    Column("streams", "at once", 1),
    Column("needed", "needed"),
    Column("replicas", "replicas"),
    Column("gpus", "GPUs"),
    Column("cores", "cores"),
    Column("utilisation", "busy", 0, "%", scale=100, spare=1),
    Column("audio_h_per_day", "audio h/day", 0, spare=2),
    Column("cost_per_hour", "cost /h", 2),
    Column("cost_per_audio_hour", "cost / audio h"),
]
DAYS = [
    Column("name", "autoscaler"),
    Column("allowed", "allowed"),
    Column("most", "most"),
    Column("replica_hours", "replica-hours", 1),
    Column("refused", "refused", 3, "%", scale=100),
    Column("lost", "lost"),
    Column("p50_ms", "p50", 0, "ms", spare=2),
    Column("p95_ms", "p95", 0, "ms"),
    Column("p99_ms", "p99", 0, "ms", spare=1),
    Column("cost", "cost", 2),
    Column("cost_per_audio_hour", "cost / audio h"),
]


def tables_of(plan: Plan) -> list[Table]:
    """The sizes by year, the days if any were simulated, and the assumptions."""
    rows: list[dict[str, Cell]] = [{"year": year, **vars(each)} for year, each in enumerate(plan.sizes)]
    note = "At the busiest time; `needed` keep the goal, `replicas` has the spare ones too."
    tables = [Table(f"Replicas: {plan.replica.settings}", SIZES, rows, note).without_empty()]
    if plan.days:
        tables.append(_days(plan))
    notes: list[dict[str, Cell]] = [{"text": text} for text in plan.assumptions()]
    return [*tables, Table("Assumptions", [Column("text", "what the figures rest on")], notes)]


def _days(plan: Plan) -> Table:
    rows: list[dict[str, Cell]] = []
    tones: dict[int, Tone] = {}
    for index, day in enumerate(plan.days):
        found = day.simulated
        rows.append(
            {
                "name": day.name,
                "allowed": f"{day.least}-{day.most}" if day.least < day.most else str(day.least),
                "most": found.most_replicas,
                "replica_hours": found.replica_s / HOUR_S,
                "refused": found.refused_share,
                "lost": found.lost,
                **{f"p{each}_ms": day.latency_ms(plan.replica, each) for each in (50, 95, 99)},
                "cost": day.cost,
                "cost_per_audio_hour": day.cost_per_audio_hour,
            }
        )
        if found.refused_share > plan.goal.refused or found.lost:
            tones[index] = "bad"
    latency = (
        "Latency from arrival to answer."
        if plan.replica.kind == "requests"
        else "Latency: the p95 of chunks measured with as many streams on a replica, over the time of all streams."
    )
    arrived = plan.days[0].simulated.arrived
    note = (
        f"{arrived} arrivals, the same for all. {latency} Red: more refused than the goal allows, or streams cut off."
    )
    return Table("Days of autoscaling, simulated", DAYS, rows, note, tones).without_empty()


def cards_of(plan: Plan) -> list[tuple[str, str, str]]:
    """The figures that a summary names: label, value, hint."""
    now, hardware = plan.sizes[0], plan.hardware
    parts = [f"{count:g} {name}" for count, name in ((now.gpus, "GPUs"), (now.cores, "cores")) if count]
    cards = [
        ("replicas", str(now.replicas), f"{now.needed} needed at the busiest time"),
        ("hardware", ", ".join(parts) or "-", "of all replicas"),
    ]
    if now.cost_per_audio_hour is not None:
        hint = f"{hardware.price:g} an hour for each replica, all day"
        cards.append(("cost per hour of audio", f"{now.cost_per_audio_hour:.3g}", hint))
    return cards


def to_json(plan: Plan) -> str:
    """The plan as JSON."""
    return json.dumps(plan.to_dict(), indent=1, ensure_ascii=False) + "\n"


def to_markdown(plan: Plan, plots: Sequence[Plot] = ()) -> str:
    """Tables, assumptions and conditions; the plots are expected in `plots/` beside it."""
    *tables, _ = tables_of(plan)
    parts = [f"# {escape_markdown(plan.title)}", *(table.to_markdown().rstrip("\n") for table in tables)]
    parts += [f"![{escape_markdown(plot.title)}](plots/{plot.name}.png)" for plot in plots]
    parts.append("### Assumptions\n\n" + "\n".join(f"* {escape_markdown(each)}" for each in plan.assumptions()))
    rows: list[dict[str, Cell]] = [{"name": name, "text": text} for name, text in plan.stamp.rows()]
    columns = [Column("name", "condition"), Column("text", "")]
    parts.append(Table("Conditions of the measurements", columns, rows).to_markdown().rstrip("\n"))
    return "\n\n".join(parts) + "\n"


def to_html(plan: Plan, plots: Sequence[Plot]) -> str:
    """One page with everything."""
    *tables, _ = tables_of(plan)
    return render(
        "tritone.capacity",
        "plan.html",
        title=plan.title,
        subtitle=plan.replica.settings,
        stamp=plan.stamp,
        cards=cards_of(plan),
        tables=tables,
        plots=plots,
        assumptions=plan.assumptions(),
        json=to_json(plan).encode(),
    )


def write_plan(plan: Plan, folder: Path) -> list[Path]:
    """Write every form into a folder, which is made if need be: plan.json, plan.md, plan.html and plots/*.png.

    Raises:
        InputError: the folder cannot be written.
    """
    drawn = plots_of(plan)
    files: dict[str, bytes] = {"plan.json": to_json(plan).encode()}
    files |= {f"plots/{each.name}.png": each.png for each in drawn}
    files |= {"plan.md": to_markdown(plan, drawn).encode(), "plan.html": to_html(plan, drawn).encode()}
    try:
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"cannot write the plan to {folder}: {error.strerror}; name another folder") from error
    return [folder / name for name in files]
