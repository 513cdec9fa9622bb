import base64
import csv
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from load_reports import HOSTILE, failed, labelled, measured, report, streams
from tritone.errors import InputError
from tritone.loadtest.findings.result import Measurement, Report
from tritone.loadtest.pages.page import cards_of, html_report, notices_of, tables_of, to_csv, to_markdown, write_report
from tritone.report.table import Table


@pytest.fixture(autouse=True)
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritone.report.plots.DPI", 20)


def headings(table: Table) -> list[str]:
    return [column.title for column in table.columns]


def column(table: Table, title: str) -> list[str]:
    place = headings(table).index(title)
    return [cells[place] for cells in table.texts()]


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def texts_of(found: Report) -> list[str]:
    return [text for text, _ in notices_of(found)]


def test_a_closed_loop_table_holds_the_figures_of_each_load() -> None:
    table, _sizing = tables_of(report(measured(1), measured(4, p50_ms=30.0), gpus=["GPU", "GPU"]))
    assert table.title == "Closed loop: asr, gRPC, 5 s"
    assert column(table, "requests in flight") == ["1", "4"]
    assert column(table, "utt/s") == ["10.0", "40.0"]
    assert column(table, "RTFx") == ["50.0", "200.0"]
    assert column(table, "RTFx /GPU") == ["25.0", "100.0"]
    assert column(table, "p50") == ["20.0", "30.0"]
    assert column(table, "p99") == ["60.0", "90.0"]
    assert column(table, "queue") == ["2.0", "2.0"]
    assert column(table, "compute") == ["11.5", "11.5"]
    assert column(table, "batch") == ["3.0", "3.0"]  # 10 of 1 and 20 of 4
    assert column(table, "padding") == ["25.0", "25.0"]
    assert column(table, "WER") == ["5.00", "5.00"]
    assert column(table, "client CPU") == ["10", "10"]
    assert table.tones == {}


def test_settings_that_vary_have_a_column_and_those_that_do_not_stand_in_the_title() -> None:
    points = [measured(1, protocol=protocol, **labelled(runtime="onnx")) for protocol in ("grpc", "http")]
    table, _sizing = tables_of(report(*points))
    assert table.title == "Closed loop: asr, 5 s, onnx"
    assert column(table, "protocol") == ["gRPC", "HTTP"]
    assert "runtime" not in headings(table)


def test_what_nobody_measured_has_no_column() -> None:
    table, _sizing = tables_of(report(measured(1, server=None, wer=None)))
    assert not {"queue", "compute", "batch", "padding", "WER", "RTFx /GPU"} & set(headings(table))


def test_streams_have_a_table_with_each_latency_under_its_own_name() -> None:
    table, _sizing = tables_of(report(streams(2), streams(8, p50_ms=60.0, in_time=0.975)))
    assert table.title == "Streams in real time: asr, gRPC, files"
    assert column(table, "streams") == ["2", "8"]
    assert column(table, "first partial p95") == ["1400", "1400"]
    assert column(table, "chunk p50") == ["30", "60"]
    assert column(table, "final p99") == ["180", "360"]
    assert column(table, "in time") == ["100.0", "97.5"]
    assert column(table, "drift") == ["0.5", "0.5"]


def test_kinds_of_load_are_not_mixed_in_one_table() -> None:
    titles = [table.title for table in tables_of(report(measured(1), measured(5, "poisson"), streams(1)))]
    kinds = ["Closed loop", "Poisson arrivals", "Streams in real time"]
    assert [title.split(":")[0] for title in titles] == [*kinds, "Replicas for a load, 1 to spare"]


def test_rows_with_faults_stand_out() -> None:
    points = [measured(1), measured(2, stable=False), measured(3, errors={"x": 1}), measured(4, client_cpu=0.95)]
    assert tables_of(report(*points))[0].tones == {1: "warn", 2: "bad", 3: "warn"}


def test_errors_are_told_by_message_with_their_places() -> None:
    points = [
        measured(1, errors={"timed out": 2}),
        measured(2, errors={"timed out": 3, HOSTILE: 9}),
        failed(4, "refused"),
    ]
    errors = tables_of(report(*points))[-1]
    assert errors.title == "Failed requests"
    assert column(errors, "message") == ["refused", HOSTILE, "timed out"]
    assert column(errors, "times") == ["40", "9", "5"]
    assert column(errors, "where")[2] == "1 request in flight (2); 2 requests in flight (3)"


def test_an_error_at_many_loads_names_the_first_ones_and_counts_the_rest() -> None:
    errors = tables_of(report(*(measured(load, errors={"x": 1}) for load in range(1, 21)), measured(99)))[-1]
    assert column(errors, "where")[0].endswith("6 requests in flight; and 14 more")


def test_remarks_of_the_measurements_are_told_once() -> None:
    points = [measured(1, notes=["somebody else used the model too", "same"]), measured(2, notes=["same"])]
    remarks = tables_of(report(*points))[-1]
    assert dict(zip(column(remarks, "remark"), column(remarks, "where"), strict=True)) == {
        "somebody else used the model too": "1 request in flight",
        "same": "everywhere",
    }


def test_a_reader_is_warned_of_everything_that_makes_figures_worthless() -> None:
    assert texts_of(report(measured(1))) == []
    assert "not complete" in texts_of(report(measured(1), complete=False))[0]
    assert "Nothing was measured" in texts_of(report())[0]
    assert "40 of 140 requests failed" in texts_of(report(measured(1), failed(2)))[0]
    assert "1 of 2 measurements did not settle" in texts_of(report(measured(1), measured(2, stable=False)))[0]
    assert "load generator was busy" in texts_of(report(measured(1, client_cpu=1.0)))[0]
    assert texts_of(report(measured(1, client_cpu=1.5, client_processes=4))) == []
    assert "the texts were not checked" in texts_of(report(measured(1, wer=None)))[0]
    assert "3 recordings did not get the same text" in texts_of(report(measured(1, different_texts=3)))[0]


def test_the_summary_takes_nothing_from_measurements_with_faults() -> None:
    cards = {label: value for label, value, _ in cards_of(report(measured(1), measured(8, stable=False), failed(9)))}
    assert cards["highest RTFx"] == "50.0"
    cards = {label: value for label, value, _ in cards_of(report(streams(4), streams(8, in_time=0.5)))}
    assert cards["most streams"] == "4"
    assert cards_of(report(failed(1))) == []
    assert cards_of(report()) == []


def test_csv_has_a_row_per_measurement_with_every_figure_and_the_conditions() -> None:
    found = report(measured(1, errors={"a, b": 2}, **labelled(runtime="onnx")), streams(2), failed(3), gpus=["GPU"])
    first, second, third = csv_rows(to_csv(found))
    assert first["processor"] == "A processor"
    assert first["versions"] == "tritone 0.1.0, onnxruntime 1.20.0"
    assert (first["load"], first["throughput"], first["rtf"]) == ("1", "10.0", "0.02")
    assert (first["latency_p95_ms"], first["latency_max_ms"]) == ("40.0", "80.0")
    assert (first["server_batches"], first["server_padding_waste"]) == ("1:10 4:20", "0.25")
    assert json.loads(first["error_messages"]) == {"a, b": 2}
    assert first["label_runtime"] == "onnx"
    assert first["streaming_final_p50_ms"] == ""
    assert (second["streaming_final_p50_ms"], second["streaming_in_time"]) == ("60.0", "1.0")
    assert (third["latency_p95_ms"], third["rtf"], third["errors"]) == ("", "", "40")


@pytest.mark.parametrize(
    "measurements",
    [
        [],
        [measured(1)],
        [failed(1)],
        [failed(1), failed(2, HOSTILE)],
        [measured(0.0, requests=0, utterances=0, audio_s=0.0, wall_s=0.0, latency=None, server=None, wer=None)],
        [measured(1, model=HOSTILE, errors={HOSTILE: 1}, notes=[HOSTILE], labels={HOSTILE: HOSTILE})],
        [measured(1, server=None), streams(1), measured(3, "streaming", streaming=None), measured(4, "constant")],
    ],
    ids=["none", "one", "only errors", "hostile errors", "zero requests", "hostile", "holes"],
)
def test_every_report_has_every_form(measurements: list[Measurement], tmp_path: Path) -> None:
    found = report(*measurements, title=HOSTILE, notes=[HOSTILE], complete=False)
    written = write_report(found, tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert {"report.json", "report.csv", "report.md", "report.html"} <= {path.name for path in written}
    assert all(path.is_file() and path.is_relative_to(folder) for path in written)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    markdown = (folder / "report.md").read_text(encoding="utf-8")
    assert "<script>" not in markdown
    for name in re.findall(r"\]\((.*?)\)", markdown):
        assert (folder / name).is_file()
    assert len(csv_rows((folder / "report.csv").read_text(encoding="utf-8"))) == len(measurements)
    console = Console(width=80, file=io.StringIO())
    for table in tables_of(found):
        console.print(table)
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_page_carries_the_raw_figures_for_download() -> None:
    found = report(measured(1), streams(2))
    page = html_report(found, plots=[])
    uri = re.search(r'download="report.json" href="data:application/json;base64,([^"]+)"', page)
    assert uri is not None
    assert json.loads(base64.b64decode(uri[1])) == json.loads(json.dumps(found.to_dict()))


def test_the_written_json_is_the_report(tmp_path: Path) -> None:
    found = report(measured(1), streams(2), failed(3))
    write_report(found, tmp_path)
    again = Report.read(tmp_path / "report.json")
    assert json.dumps(again.to_dict()) == json.dumps(found.to_dict())
    assert again.stamp == found.stamp


def test_markdown_is_headed_by_the_title_and_ends_with_the_conditions() -> None:
    text = to_markdown(report(measured(1), complete=False, title="A * test"))
    assert text.startswith("# A \\* test\n\n> The run was interrupted")
    assert "| processor | A processor |" in text.split("### Conditions")[1]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "file"))):
        write_report(report(measured(1)), tmp_path / "file")
