import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import pytest
import typer

from tritone.cli.main import app
from tritone.errors import InputError, OperatorError, ServerSetupError
from tritone.loadtest.findings.result import Latency, Measurement
from tritone.loadtest.plans.build_options import BuildOptions, Value, parse_option
from tritone.loadtest.plans.ramp import Limit
from tritone.loadtest.plans.sweep import Grid, Setting, Sweep, Trial, judge, known_trials, run_sweep, sweep_report
from tritone.report.stamp import Stamp
from tritone.repository import ModelOptions

STAMP = Stamp(
    command="c", date="d", commit="", processor="p", cores=2, memory_gib=4.0, system="s", versions={}, load=0.0
)
LIMIT = Limit(limit_ms=100)


class Quiet:
    """An observer that remembers whom it heard of."""

    def __init__(self) -> None:
        self.announced: list[tuple[Setting, int, int]] = []
        self.heard: list[Trial] = []

    def trying(self, setting: Setting, place: int, total: int) -> None:
        self.announced.append((setting, place, total))

    def tried(self, trial: Trial) -> None:
        self.heard.append(trial)


def measured(throughput: float, p95_ms: float = 50.0, load: float = 1, failed: int = 0) -> Measurement:
    latency = Latency(
        count=9, mean_ms=p95_ms, p50_ms=p95_ms, p90_ms=p95_ms, p95_ms=p95_ms, p99_ms=p95_ms, max_ms=p95_ms
    )
    return Measurement(
        model="m",
        protocol="grpc",
        loop="closed",
        load=load,
        wall_s=10.0,
        requests=1000,
        utterances=round(throughput * 10),
        audio_s=10.0,
        latency=latency,
        errors={"busy": failed} if failed else {},
    )


def grid(**axes: Sequence[Value]) -> Grid:
    return Grid(base=BuildOptions(), axes=axes)


class Server:
    """A fake of building, serving and measuring: throughput is arithmetic over the options."""

    def __init__(self, broken: Sequence[int] = ()) -> None:
        self.asked: list[Setting] = []
        self._broken = broken

    def __call__(self, setting: Setting) -> list[Measurement]:
        self.asked.append(setting)
        options = setting.options
        if options.instances in self._broken:
            raise ServerSetupError("models did not load")
        # the more instances the better, batches of 8 are best, a delay costs latency
        throughput = 10.0 * options.instances + 20 - abs(options.max_batch_size - 8)
        return [
            measured(throughput, p95_ms=40 + options.queue_delay_ms, load=4),
            measured(throughput + 5, p95_ms=90 + options.queue_delay_ms, load=8),
            measured(throughput + 9, p95_ms=400, load=16),
        ]


def test_a_grid_is_every_combination_once_in_the_order_of_its_axes() -> None:
    found = grid(instances=[1, 2], max_batch_size=[8, 16]).settings()
    values = [(each.options.instances, each.options.max_batch_size) for each in found]
    assert values == [(1, 8), (1, 16), (2, 8), (2, 16)]


def test_settings_that_serve_alike_are_one_setting() -> None:
    # a batch of one is full at once, whatever the delay
    found = grid(max_batch_size=[1, 8], queue_delay_ms=[0.0, 2.0, 5.0]).settings()
    assert [(each.options.max_batch_size, each.options.queue_delay_ms) for each in found] == [
        *((1, 0.0), (8, 0.0), (8, 2.0), (8, 5.0))
    ]


def test_static_batching_asks_with_full_batches_that_wait_for_nobody() -> None:
    found = grid(batching=["static", "dynamic"], max_batch_size=[8], queue_delay_ms=[2.0, 5.0]).settings()
    assert [(each.batching, each.batch_size, each.options.queue_delay_ms) for each in found] == [
        *(("static", 8, 0.0), ("dynamic", 1, 2.0), ("dynamic", 1, 5.0))
    ]
    assert found[0].labels(["batching", "max_batch_size"]) == {"batching": "static", "max batch": "8"}


@pytest.mark.parametrize(
    ("axes", "complaint"),
    [
        ({"colour": ["red"]}, "no option 'colour' to vary"),
        ({"instances": []}, "axis instances has no values"),
        ({"instances": [0, 1]}, "instances must be a number above 0"),
        ({"instances": range(1, 102), "threads": range(10)}, "1010 settings are more than a sweep tries"),
    ],
)
def test_a_grid_that_cannot_be_tried_is_refused_before_anything_is_measured(
    axes: Mapping[str, Sequence[Value]], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Grid(base=BuildOptions(), axes=axes)


def test_the_highest_throughput_within_the_limit_wins_not_the_highest_of_all() -> None:
    sweep = run_sweep(grid(instances=[1, 2], queue_delay_ms=[0.0, 50.0]), Server(), LIMIT, Quiet())
    assert sweep.complete
    assert [(each.setting.options.instances, each.setting.options.queue_delay_ms) for each in sweep.ranking] == [
        *((2, 0.0), (2, 50.0), (1, 0.0), (1, 50.0))
    ]
    winner = sweep.winner
    assert winner is not None
    assert winner.best is not None
    # 2 instances, batches of 32: 10 * 2 + 20 - 24 = 16, and 5 more at load 8; load 16 is beyond the limit
    assert (winner.best.load, winner.best.throughput) == (8, 21.0)
    # a delay of 50 ms puts load 8 beyond the limit too
    assert [each.best.load for each in sweep.ranking if each.best] == [8, 4, 8, 4]


def test_a_measurement_with_failed_requests_never_wins() -> None:
    setting = Setting(BuildOptions())
    fast = measured(900, failed=500)
    assert judge(setting, [fast], None).best is None
    assert judge(setting, [fast, measured(3)], None).best == measured(3)
    assert judge(setting, [], LIMIT).best is None


def test_a_load_that_was_measured_again_competes_as_the_search_for_the_largest_load_judges_it() -> None:
    setting = Setting(BuildOptions())
    late, good, restless = measured(90, p95_ms=101), measured(70), replace(measured(80), stable=False)
    assert judge(setting, [late, good], LIMIT).best == good
    assert judge(setting, [late, restless], LIMIT).best is None
    assert judge(setting, [restless, restless], LIMIT).best == restless
    assert judge(setting, [good, late], LIMIT).best is None


def test_with_several_lengths_each_has_its_best_and_seconds_of_audio_a_second_count() -> None:
    def lengths(short: float, long: float, p95_ms: float = 50.0) -> list[Measurement]:
        of_a_second = replace(measured(short), seconds="1", audio_s=10 * short)
        of_ten = replace(measured(long, p95_ms=p95_ms), seconds="10", audio_s=100 * long)
        return [of_a_second, replace(of_a_second, utterances=1, load=2), of_ten]

    one, two, late = (Setting(BuildOptions(instances=count)) for count in (1, 2, 3))
    trials = [
        judge(one, lengths(short=90, long=1), LIMIT),
        judge(two, lengths(short=60, long=5), LIMIT),
        judge(late, lengths(short=99, long=9, p95_ms=101), LIMIT),
    ]
    assert [trial.score for trial in trials] == [100, 110, 0]
    sweep = Sweep(grid=grid(instances=[1, 2, 3]), trials=trials)
    rows = [
        (row.get("rank"), row["instances"], row.get("audio"), row.get("throughput")) for row in sweep.table("t").rows
    ]
    assert rows == [
        *((1, "2", "1 s", 60), (1, "2", "10 s", 5), (2, "1", "1 s", 90), (2, "1", "10 s", 1), (None, "3", None, None))
    ]
    assert sweep.table("t").tones == {0: "good", 1: "good", 4: "bad"}


def test_the_largest_number_of_streams_wins() -> None:
    streams = [replace(measured(5, load=load), loop="streaming") for load in (10, 40, 20)]
    trial = judge(Setting(BuildOptions()), streams, LIMIT)
    assert trial.best is not None
    assert (trial.best.load, trial.score) == (40, 40)


def test_a_setting_that_does_not_load_is_reported_and_the_sweep_goes_on() -> None:
    observer = Quiet()
    sweep = run_sweep(grid(instances=[1, 2, 3]), Server(broken=[2]), LIMIT, observer)
    assert [trial.error for trial in sweep.trials] == ["", "models did not load", ""]
    assert [(place, total) for _, place, total in observer.announced] == [(1, 3), (2, 3), (3, 3)]
    assert observer.heard == list(sweep.trials)
    assert sweep.winner is not None
    assert sweep.winner.setting.options.instances == 3
    lines = sweep.table("t").to_csv().splitlines()
    assert lines[0].startswith("rank,instances,load,throughput,")
    assert lines[-1].startswith(",2,,,")
    assert "failed: models did not load" in lines[-1]


def test_a_defect_of_our_own_is_not_taken_for_a_result() -> None:
    def broken(_: Setting) -> list[Measurement]:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        run_sweep(grid(instances=[1]), broken, LIMIT, Quiet())


def test_known_trials_are_not_measured_again_unless_they_failed() -> None:
    server = Server()
    axes = {"instances": [1, 2, 3]}
    first, second, third = grid(**axes).settings()
    known = [judge(first, [measured(500)], LIMIT), Trial(setting=second, error="did not load")]
    sweep = run_sweep(grid(**axes), server, LIMIT, Quiet(), known=known)
    assert server.asked == [second, third]
    assert [trial.setting for trial in sweep.trials] == [first, second, third]
    assert sweep.winner == known[0]


def test_measurements_carry_the_values_of_the_axes_as_labels_and_are_known_again_by_them() -> None:
    axes = grid(max_batch_size=[1, 8], queue_delay_ms=[0.0, 5.0])
    sweep = run_sweep(axes, Server(), LIMIT, Quiet())
    report = sweep_report(sweep, STAMP, "t", "which is best?", "tritone build")
    assert [each.labels for each in report.measurements[::3]] == [
        {"max batch": "1", "delay ms": "0"},
        {"max batch": "8", "delay ms": "0"},
        {"max batch": "8", "delay ms": "5"},
    ]
    assert known_trials(report, "which is best?", axes, LIMIT) == list(sweep.trials)
    wider = grid(max_batch_size=[1, 8, 16], queue_delay_ms=[0.0])
    assert [each.setting.options.max_batch_size for each in known_trials(report, "which is best?", wider, LIMIT)] == [
        1,
        8,
    ]
    assert known_trials(None, "which is best?", axes, LIMIT) == []


def test_a_report_on_another_question_is_not_gone_on_with() -> None:
    report = sweep_report(Sweep(grid=grid(instances=[1]), trials=[]), STAMP, "t", "bundle a", None)
    with pytest.raises(InputError, match=r"It is: bundle a\. This is: bundle b\."):
        known_trials(report, "bundle b", grid(instances=[1]), LIMIT)


def test_the_report_of_a_sweep_tells_the_winner_and_what_failed() -> None:
    sweep = run_sweep(grid(instances=[1, 2]), Server(broken=[2]), LIMIT, Quiet())
    notes = sweep_report(sweep, STAMP, "t", "question", "tritone build m").notes
    assert notes == ["question", "best: instances 1: tritone build m", "instances 2 failed: models did not load"]


def test_an_interrupted_sweep_keeps_what_it_has_and_drops_the_setting_on_trial() -> None:
    server = Server()

    def interrupted(setting: Setting) -> list[Measurement]:
        if setting.options.instances == 3:
            raise KeyboardInterrupt
        return server(setting)

    sweep = run_sweep(grid(instances=[1, 2, 3]), interrupted, LIMIT, Quiet())
    assert not sweep.complete
    assert [trial.setting.options.instances for trial in sweep.trials] == [1, 2]


def test_the_winners_command_line_builds_exactly_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    options = BuildOptions(instances=2, max_batch_size=16, queue_delay_ms=2.5, preferred_batch_sizes=(8, 16), threads=1)
    built: list[ModelOptions] = []

    def build(*args: object, options: ModelOptions, **kwargs: object) -> list[object]:
        built.append(options)
        return []

    monkeypatch.setattr("tritone.cli.build.build_repository", build)
    monkeypatch.setattr("tritone.cli.build.compiled_searches", lambda path: set())
    monkeypatch.setattr("tritone.cli.build.facts", lambda path, names: [])
    line = options.build_command("my model", "some where")
    assert shlex.split(line)[:5] == ["tritone", "build", "my model", "--output", "some where"]
    with pytest.raises(SystemExit) as ended:
        typer.main.get_command(app).main(shlex.split(line)[1:])
    assert ended.value.code == 0
    names = [field.name for field in fields(ModelOptions)]
    assert [getattr(built[0], name) for name in names] == [getattr(options, name) for name in names]


def test_the_layout_is_an_option_to_vary_and_one_model_has_no_stages() -> None:
    found = grid(layout=["fused", "ensemble"], acoustic=["native", "python"]).settings()
    assert [(each.options.layout, each.options.acoustic) for each in found] == [
        *(("fused", ""), ("ensemble", "native"), ("ensemble", "python"))
    ]
    assert parse_option("layout", "ensemble") == ("layout", "ensemble")
    assert parse_option("stage", "acoustic=2@0,1,decoder=4") == ("stage", ("acoustic=2@0,1", "decoder=4"))
    options = BuildOptions(layout="ensemble", stage=("acoustic=2@0,1", "decoder=4"))
    assert options.build_command("m").endswith("--layout ensemble --stage acoustic=2@0,1 --stage decoder=4")
    with pytest.raises(ValueError, match="layout must be fused or ensemble, got 'split'"):
        BuildOptions(layout="split")  # type: ignore[arg-type]


def test_options_at_their_defaults_are_left_out_of_the_command_line() -> None:
    assert BuildOptions().build_command("m") == "tritone build m --output REPO"
    assert BuildOptions().build_command("m", "r", "offline") == "tritone build m --output r --mode offline"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("instances", "2", ("instances", 2)),
        ("queue-delay-ms", "2.5", ("queue_delay_ms", 2.5)),
        ("--max_batch_size", " 8 ", ("max_batch_size", 8)),
        ("preferred-batch-sizes", "8,16", ("preferred_batch_sizes", (8, 16))),
        ("device", "gpu", ("device", "gpu")),
    ],
)
def test_options_of_build_are_read_by_their_own_types(name: str, text: str, value: tuple[str, Value]) -> None:
    assert parse_option(name, text) == value


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("colour", "red", "no option 'colour' of `tritone build`; there are .*instances, device"),
        ("instances", "1.5", "instances needs a whole number, got '1.5'"),
        ("queue-delay-ms", "soon", "queue-delay-ms needs a number, got 'soon'"),
        ("gpus", "0,a", "gpus needs whole numbers separated by commas, got '0,a'"),
    ],
)
def test_an_option_that_build_would_not_take_is_refused(name: str, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_option(name, text)


def test_the_table_of_a_sweep_ranks_those_within_the_limit_and_says_why_others_are_not() -> None:
    trials = [
        judge(Setting(BuildOptions(instances=1)), [measured(7)], LIMIT),
        judge(Setting(BuildOptions(instances=2)), [measured(70, p95_ms=101)], LIMIT),
        judge(Setting(BuildOptions(instances=4)), [measured(9)], LIMIT),
    ]
    table = Sweep(grid=grid(instances=[1, 2, 4]), trials=trials).table("t")
    assert [(row.get("rank"), row["instances"], row.get("note")) for row in table.rows] == [
        *((1, "4", None), (2, "1", None), (None, "2", "nothing kept the limit"))
    ]
    assert table.tones == {0: "good", 2: "bad"}


def test_an_error_of_any_kind_of_ours_is_a_result() -> None:
    def broken(_: Setting) -> list[Measurement]:
        raise OperatorError("no graph")

    assert run_sweep(grid(instances=[1]), broken, LIMIT, Quiet()).trials[0].error == "no graph"
