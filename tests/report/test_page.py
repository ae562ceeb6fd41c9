"""The report as one page: whole, readable without a network, honest about what is missing."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rfwp.cli import main
from rfwp.config import replace, to_dict
from rfwp.presets import language_run, presets
from rfwp.report.deviations import deviations_text, signed, to_html
from rfwp.report.page import page, write_page
from rfwp.report.paper import tables
from rfwp.report.plots import COLOURS
from rfwp.report.records import append_line
from rfwp.report.results import read_results
from rfwp.report.wiki import WORDS
from tests.report.runs import line, write
from tests.report.test_atari import line as agent_line
from tests.report.test_speed import bench_line

ROOT = Path(__file__).parent.parent.parent
VOID = {"meta", "link", "br", "img", "hr", "input"}


def text_line(model, seed=1, steps=1000, score=40.0):
    preset = f"wiki-28m/{model}"
    config = replace(language_run(preset), {"train.steps": steps, "train.seed": seed})
    curve = [[step, 5.0, score * 1000 / step] for step in (250, 500, 1000)]
    found = {"metrics": {"perplexity": score}, "valid": {"perplexity": score - 1}, "curve": curve, "words": WORDS, "data": "d"}
    return line() | {"preset": preset, "seed": seed, "config": to_dict(config)} | found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of every kind."""
    folder = tmp_path_factory.mktemp("results")
    write(folder / "runs", line(seed=1, score=0.9), line(seed=2, score=0.92), line("code-execution-3/lstm", score=0.5))
    write(folder / "runs", line("listops-15/rdn", changes={"train.epochs": 3}))
    write(folder / "runs", text_line("rdn"), text_line("rdn", seed=2, score=42.0), text_line("delta-net", score=45.0))
    games = (("rdn", 1500.0), ("lstm", 800.0))
    write(folder / "runs", agent_line(score=20.0), *(agent_line(model, "seaquest", score=score) for model, score in games))
    ops, lengths = ("sum", "delta"), (256, 512, 1024)
    timed = [bench_line(f"{op} forward + backward", T=T, shape="scaling") for op in ops for T in lengths]
    for one in (*timed, bench_line("train step rdn", floor_ratio=1.3)):
        append_line(folder / "bench" / "bench.jsonl", one)
    return folder


@pytest.fixture(scope="module")
def html(folder):
    results = read_results(folder)
    assert results.problems == []
    return page(results, results.problems)


class Tree(HTMLParser):
    """Elements in their order, as (name, attributes, text), and whether they were closed in the right order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.ids = [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, name, attributes):
        element = (name, dict(attributes), [])
        self.elements.append(element)
        self.ids += [value for key, value in attributes if key == "id"]
        if name not in VOID:
            self.open.append(element)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes), []))
        self.ids += [value for key, value in attributes if key == "id"]

    def handle_endtag(self, name):
        assert self.open.pop()[0] == name

    def handle_data(self, data):
        for _, _, texts in self.open:
            texts.append(data)

    def all(self, name):
        return [(attributes, "".join(texts)) for found, attributes, texts in self.elements if found == name]


def test_page_is_well_formed_and_no_id_is_there_twice(html):
    tree = Tree(html)
    assert len(tree.ids) == len(set(tree.ids))
    anchors = [attributes["href"] for attributes, _ in tree.all("a")]
    assert len(anchors) > 10
    assert {anchor.removeprefix("#") for anchor in anchors} <= set(tree.ids)


def test_page_loads_nothing_and_needs_no_scripts(html):
    assert "<script" not in html
    assert not re.search(r"https?:|//[a-z]|@import|url\(", html)
    for name, attributes, _ in Tree(html).elements:
        assert not {"src", "srcset", "onclick", "onload"} & set(attributes), name
        assert attributes.get("href", "#").startswith(("#", "data:,"))


def test_every_figure_says_what_it_shows(html):
    tree = Tree(html)
    charts = [attributes for attributes, _ in tree.all("svg") if attributes.get("aria-hidden") != "true"]
    texts = {attributes["id"]: text for name in ("title", "desc") for attributes, text in tree.all(name) if "id" in attributes}
    assert len(charts) > 12
    for chart in charts:
        assert chart["role"] == "img"
        assert texts[chart["aria-labelledby"]]
        assert re.search(r"\d", texts[chart["aria-describedby"]])


def test_every_table_of_the_paper_is_there_and_a_missing_cell_is_a_dash(html):
    titles = [text for _, text in Tree(html).all("h3")]
    for number, table in enumerate(tables().values(), 1):
        assert any(title == f"Table {number}: {table.title}" for title in titles)
    assert html.count("<table>") >= len(tables())
    assert '<td class="none">-</td>' in html
    assert "<td></td>" not in html


def test_cells_have_spread_number_of_runs_and_the_papers_number(html):
    row = re.search(r'<tr><th scope="row">Delta RNN</th><td class="ours">91\.0 ± 1\.4 \(2\) ≈</td>(.*?)</tr>', html)
    assert row
    assert '<td class="printed">90.8 ± 1.7</td>' in row[1]
    assert '50.0 (1) <span class="worse">−</span>' in html


def test_figures_name_runs_device_day_and_code(html):
    captions = [text for _, text in Tree(html).all("figcaption")]
    assert any(caption.startswith("3 runs, NVIDIA H200, 2026-01-01, code 0123456") for caption in captions)
    assert all(re.match(r"\d+ runs?, |The paper's scores|NVIDIA", caption) for caption in captions)


def test_a_model_has_one_colour_in_all_figures(html):
    looks = set(re.findall(r"model-([a-z-]+)", html))
    assert looks <= {*COLOURS, "other"}
    for model, colour in COLOURS.items():
        assert html.count(f".model-{model} {{ --model: {colour}; }}") == 1
    for preset in presets():
        assert any(preset.partition("/")[2].startswith(model) for model in COLOURS)


def test_our_improvements_come_with_the_papers_beside_them(html):
    titles = [text for _, text in Tree(html).all("h3")]
    ours = next(n for n, title in enumerate(titles) if title.startswith("Here: RDN over LSTM, after 7.5 million steps"))
    assert titles[ours + 1] == "Paper: RDN over LSTM, after 50 M steps"
    assert "Seaquest +88 %" in html


def test_language_models_have_their_table_and_curves(html):
    titles = [text for _, text in Tree(html).all("h3")]
    assert "Learning curves, wiki-28m, 1,000 steps" in titles
    assert any(title.startswith("wiki-28m, 1,000 steps") for title in titles)
    assert "rdn (2 seeds)" in html


def test_without_runs_the_papers_figures_are_said_to_be_the_papers(tmp_path):
    append_line(tmp_path / "bench" / "bench.jsonl", bench_line("delta forward + backward"))
    results = read_results(tmp_path)
    text = page(results, [])
    assert "There are no runs of ours that could be compared" in text
    assert "Here: " not in "".join(text for _, text in Tree(text).all("h3"))
    assert "No runs yet." in text


def test_markdown_has_the_same_tables_and_texts(folder):
    _, path = write_page(read_results(folder), folder)
    text = path.read_text(encoding="utf-8")
    assert "| Delta RNN | 91.0 ± 1.4 (2) ≈ | 90.8 ± 1.7 |" in text
    for heading in ("## Overview", "### Table 10:", "## Learning curves", "## Speed", "## Deviations from the paper"):
        assert heading in text
    # every row of every table has as many cells as its heading
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in block.splitlines()}) == 1


def test_the_same_results_give_the_same_page(folder, html):
    assert page(read_results(folder), []) == html


# --- Damage ---


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without(one, part, **instead):
    """A line whose config lacks a part, or has another instead."""
    del one["config"][part]
    one["config"] |= instead
    return json.dumps(one)


DAMAGE = {
    "cut off": '{"preset": "code-ex',
    "not JSON": "\x00\x00",
    "no run": '{"what": 1}',
    "not a number": json.dumps(line(score=float("nan"))),
    "an agent without a game": without(agent_line(), "environment", environment={"kind": "atari"}),
    "a text without steps": without(text_line("rdn"), "train"),
    "a language model without a text": json.dumps(line() | {"preset": "lm/rdn"}),
    "a number without end": json.dumps(line() | {"curve": [[1, 2.0, 10**400]]}),
    "brackets without end": "[" * 100_000,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_broken_line_is_named_and_the_report_is_written_without_it(here, capsys, kind):
    write(here / "results" / "runs", line())
    with (here / "results" / "runs" / "runs.jsonl").open("a") as file:
        file.write(DAMAGE[kind] + "\n")
    write(here / "results" / "runs", line(seed=2))
    main(["report"])
    assert capsys.readouterr().err == "rfwp: results/runs/runs.jsonl: line 2 is not a finished run; it was passed over\n"
    text = (here / "results" / "report.html").read_text(encoding="utf-8")
    assert "runs/runs.jsonl: line 2 is not a finished run" in text
    assert "Made from 2 runs" in text
    assert "line 2" in (here / "results" / "report.md").read_text(encoding="utf-8")


def test_a_broken_measurement_is_named_too(here, capsys):
    append_line(here / "results" / "bench" / "x.jsonl", bench_line("delta forward + backward"))
    append_line(here / "results" / "bench" / "x.jsonl", bench_line("delta forward + backward", sizes={"B": "many"}))
    main(["report"])
    assert capsys.readouterr().err == "rfwp: results/bench/x.jsonl: line 2 is not a row of a benchmark; it was passed over\n"


def test_texts_of_a_line_cannot_become_part_of_the_page(here):
    evil = '"><script>alert(1)</script>'
    write(here / "runs", line(device=evil, commit="<b>"), agent_line(game=evil), text_line("rdn") | {"device": evil})
    append_line(here / "bench" / "x.jsonl", bench_line(evil, shape=evil, backend=evil, note=evil, device=evil))
    results = read_results(here)
    assert results.problems == []
    text = page(results, [evil])
    assert "<script" not in text
    assert len(Tree(text).ids) == len(set(Tree(text).ids))


def test_report_without_matplotlib_has_its_page_and_says_what_is_missing(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write(here / "results" / "runs", line())
    main(["report"])
    assert capsys.readouterr().err == 'rfwp: a plot needs: pip install "rfwp[report]"\n'
    assert '<svg class="chart"' in (here / "results" / "report.html").read_text(encoding="utf-8")


def test_committed_results_make_a_page_below_2_mb():
    results = read_results(ROOT / "results")
    assert results.problems == []
    assert len(page(results, [])) < 2_000_000


# --- Deviations, style ---


def test_deviations_are_those_of_the_paper_map():
    text = to_html(deviations_text())
    assert text.count("<ol>") == 2
    assert text.count("<li>") == len(re.findall(r"^\d+\. ", deviations_text(), re.MULTILINE)) > 20
    assert "<strong>Feature maps</strong>" in text
    Tree(text)


def test_an_installed_package_lists_what_its_docstrings_sign(tmp_path):
    (tmp_path / "rfwp").mkdir()
    text = "y = W x\n\n    Differs from the paper: one query\n    a gate.\n    Differs from the authors: two.\n    "
    (tmp_path / "rfwp" / "fast.py").write_text(f'class Net:\n    """{text}"""\n')
    assert list(signed(tmp_path / "rfwp")) == [("fast.py::Net", "one query a gate.")]
    assert "1. `fast.py::Net`: one query a gate." in deviations_text(tmp_path / "rfwp")
    assert len(list(signed())) > 5


def test_colours_are_those_of_the_local_web_page():
    def colours(pattern):
        text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "rfwp").glob(pattern)))
        return re.findall(r"(--[a-z-]+): (#[0-9a-f]{6});", text)

    mine = [pair for pair in colours("report/page.css") if pair[0] != "--model"]
    assert len(mine) >= 20
    assert set(mine) <= set(colours("play/static/*.css"))
