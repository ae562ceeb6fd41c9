"""The documentation: its site builds without a warning, its programs run, its commands exist, its links lead somewhere."""

import dataclasses
import functools
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import tyro

import rfwp
from rfwp import cli
from rfwp.config import AtariConfig
from rfwp.presets import agent_run, find, is_agent, is_language, language_run, run_config
from rfwp.reproduce.agents import agent_jobs
from rfwp.reproduce.jobs import chosen_presets
from rfwp.tasks.words import Words
from rfwp.train.changes import changed
from tests.pages import PAGES, build_site, command_lines, python_blocks, read, run_page, words

PROGRAMS = {
    "README.md": "tests/test_readme.py",
    "CONTRIBUTING.md": "tests/test_readme.py",
    "docs/generation.md": "tests/hf/test_export.py",
    "docs/many-machines.md": "tests/train/test_sharded.py",
    "docs/play.md": "tests/test_trace.py",
    "docs/reinforcement-learning.md": "tests/rl/test_docs.py",
    **{
        f"docs/{name}.md": "tests/test_docs.py"
        for name in ("index", "quickstart", "tutorial", "tasks", "own-fast-net", "language-modelling")
    },
}
"""Pages with Python, and the tests that run it."""
COMMANDS = [(page, line) for page in PAGES for line in command_lines(page)]


# --- programs and commands ---


def test_no_page_has_python_that_no_test_runs():
    assert {page for page in PAGES if python_blocks(page)} == set(PROGRAMS)
    for page, test in PROGRAMS.items():
        text = read(test)
        assert page in text or (Path(page).name in text and "TEXT" in text), page


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_home_page_builds_what_it_says(folder):
    names = run_page("docs/index.md")
    assert names["y"].shape == (8, 100, 256)
    assert names["logits"].shape == (2, 50, 26)


def test_quickstart_learns(folder):
    names = run_page("docs/quickstart.md")
    # chance is log 10 = 2.3
    assert names["loss"].item() < 2


def test_tutorial_shows_what_it_says(folder, capsys):
    names = run_page("docs/tutorial.md")
    lstm, rdn, linear = (names["accuracy"](names[name]) for name in ("lstm", "rdn", "linear"))
    assert 60 < lstm < 85
    assert rdn > 90
    assert linear < lstm
    assert "{'W': (4, 2, 16, 16), 'y': (4, 2, 16)}" in capsys.readouterr().out


def test_guide_to_the_tasks_trains_on_its_own_files(folder, capsys):
    names = run_page("docs/tasks.md")
    assert names["result"].metrics["token accuracy"] > 0.9
    assert {"config.json", "metrics.jsonl", "best", "last", "result.json"} <= set(os.listdir("runs/mine"))
    assert rfwp.load("runs/mine/best").config == names["model"]
    assert capsys.readouterr().out.startswith("authors 3\ntrue 9\n")


def test_vocabulary_of_the_guide_to_language_models_has_the_words_that_come_twice(folder):
    # whatever the reader takes for a space
    Path("train.txt").write_text("b a\u00a0c b\na b", encoding="utf-8")
    run_page("docs/language-modelling.md")
    assert Words.load(Path("vocabulary.txt")).symbols == ("<eos>", "<unk>", "b", "a")


def test_own_fast_net_rule_and_slow_net_run_and_pass_their_tests(capsys):
    names = run_page("docs/own-fast-net.md")
    out = capsys.readouterr().out
    assert "Feedforward/Delta fast Gated Net, width=8, heads=2, plan=delta" in out
    assert "Feedforward/Forgetting fast Linear Net" in out
    assert set(names["state"]) == {"W"}


@pytest.fixture(scope="module")
def parse():
    """The command line without its commands: what each of them would be called with."""
    parser = tyro.extras.SubcommandApp()
    for name, command in cli.COMMANDS.items():
        parser.command(_recorded(name, command), name=name)
    return lambda arguments: parser.cli(args=arguments, config=(tyro.conf.OmitArgPrefixes,))


def _recorded(name, command):
    @functools.wraps(command)
    def record(*values, **named):
        return name, *values, *named.values()

    return record


def test_there_are_commands_to_check():
    assert len(COMMANDS) > 80


@pytest.mark.parametrize("line", ["trian lm/rdn", "train lm/rdn --leraning-rate 1", "eval", "bench ops --dtype fp8"])
def test_a_slip_in_a_command_is_found(line, parse, capsys):
    with pytest.raises(SystemExit):
        parse(words(line))


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line[:50]}" for page, line in COMMANDS])
def test_command_of_a_page_parses_and_names_what_exists(page, line, parse):
    command, *given = parse(words(line))
    # RUN, PRESET and lm/ROW stand for what the reader has
    if given and isinstance(given[0], str) and re.search("[A-Z]{3}", given[0]):
        return
    if command == "show":
        find(given[0].partition(":")[0])
    elif command == "train" and given[0] not in ("", "rl"):
        check_preset(*given)
    elif command == "reproduce":
        check_reproduced(given[0])


def check_preset(preset, options, *_):
    if is_agent(preset):
        agent_run(preset, AtariConfig())
    elif is_language(preset):
        language_run(preset)
    else:
        changed(run_config(preset), options)


def check_reproduced(options):
    if options.table != "atari":
        assert chosen_presets(options.table, options.models)
    elif options.steps is not None:
        assert agent_jobs(dataclasses.replace(options, games=options.games or ("pong",)))


# --- the site ---


LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""What a tag makes a browser load."""


class Content(HTMLParser):
    """Of a page: its links, what it loads, and the places in it that can be linked to."""

    def __init__(self, path: Path):
        super().__init__()
        self.links, self.loaded, self.ids, self.tags = [], [], set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.add(tag)
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if found.get(LOADED.get(tag)):
            self.loaded.append(found[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site: every page by its path."""
    out = tmp_path_factory.mktemp("site")
    build_site(out)
    return {path: Content(path) for path in out.rglob("*.html")}


def test_site_builds_with_every_page(site):
    names = {path.name for path in site}
    expected = {Path(page).with_suffix(".html").name for page in PAGES if page.startswith("docs/")}
    assert expected | {"derivations.html", "recurrent_ppo.py.html"} <= names


def test_site_asks_the_network_for_nothing(site):
    for path, page in site.items():
        assert not [address for address in page.loaded if re.match(r"(https?:)?//", address)], path
    (root,) = {path.parent for path in site if path.name == "tutorial.html"}
    styles = [path.read_text(encoding="utf-8") for path in root.rglob("*.css")]
    assert styles
    assert not any(re.search(r"url\([\"']?(https?:)?//|@import", style) for style in styles)


def test_links_of_the_site_lead_somewhere(site):
    checked = 0
    for path, page in site.items():
        # its links begin at the root of a server
        if path.name == "404.html":
            continue
        for link in page.links:
            if re.match(r"https?:", link):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path.name}: {link}"
            if anchor and target in site:
                assert anchor in site[target].ids, f"{path.name}: {link}"
                checked += 1
    assert checked > 100


def test_every_public_name_is_in_the_reference(site):
    reference = {name.rpartition(".")[2] for path, page in site.items() if path.parent.name == "api" for name in page.ids}
    rooms = (rfwp, rfwp.layers, rfwp.models, rfwp.ops, rfwp.fwp, rfwp.train, rfwp.rl, rfwp.tasks)
    named = {name for room in rooms for name in room.__all__} - {"__version__", "RFWPError", "SPLITS", "State"}
    assert named <= reference, sorted(named - reference)


def test_examples_in_docstrings_are_code(site):
    """`>>>` would be a quotation in Markdown."""
    pages = {path: page for path, page in site.items() if path.parent.name == "api"}
    assert not any("blockquote" in page.tags for page in pages.values())
    assert any("&gt;&gt;&gt; " in path.read_text(encoding="utf-8") for path in pages)
