"""The settings: where they are looked for, what they may say, and one sentence for each mistake."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdoctor.check.settings.files import load
from graphdoctor.check.settings.settings import Budgets, Settings, TargetSettings, parse
from graphdoctor.check.settings.toml import settings_schema, settings_toml
from graphdoctor.cli import main
from graphdoctor.values.errors import UsageError
from tests.support.checking import write

SECTION = "[tool.graphdoctor]\n"


def test_defaults_hold_without_a_file(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    project = load(tmp_path)
    assert project.settings == Settings()
    assert project.root == tmp_path


def test_targets_may_be_entries_tables_or_named_tables() -> None:
    entries = parse({"targets": ["models/a.py", "models/a.py:make"]}, where="x").targets
    assert [one.name for one in entries] == ["models/a", "models/a:make"]
    table = {"entry": "a.py", "mode": "training", "input": ["8x3"], "max-syncs": 0}
    expected = TargetSettings("net", "a.py", ("8x3",), "training", Budgets(max_syncs=0))
    assert parse({"targets": [{"name": "net", **table}]}, where="x").targets == (expected,)
    assert parse({"targets": {"net": table}}, where="x").targets == (expected,)


def test_a_target_says_whether_its_inputs_get_other_values() -> None:
    table = {"entry": "a.py", "input": ["8x3"], "inputs": "fixed"}
    (target,) = parse({"targets": [table]}, where="x").targets
    assert (target.input, target.inputs) == (("8x3",), "fixed")
    assert parse({"targets": ["a.py"]}, where="x").targets[0].inputs == "vary"


def test_tensors_of_a_target_may_have_their_former_name() -> None:
    (target,) = parse({"targets": [{"entry": "a.py", "inputs": ["8x3"]}]}, where="x").targets
    assert (target.input, target.inputs) == (("8x3",), "vary")


def test_file_of_a_target() -> None:
    files = {"a/b.py": "a/b.py", "a/b.py:make": "a/b.py", "package.module:net": ""}
    assert {entry: TargetSettings("n", entry).file for entry in files} == files


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"fail_onn": "error"}, r"unknown key 'fail_onn'; the nearest known one is 'fail-on'"),
        ({"xyz": 1}, r"unknown key 'xyz'; the nearest known one is '"),
        ({"targets": [{"entry": "a.py", "max_sync": 1}]}, "the nearest known one is 'max-syncs'"),
        ({"targets": [{"name": "net"}]}, "'net'.*has no `entry`"),
        ({"targets": ["a.py", "a.py"]}, "two targets named 'a'"),
        ({"targets": "a.py"}, "must be a list of targets"),
        ({"targets": [3]}, "must be a list of targets"),
        ({"fail-on": "errors"}, "must be one of error, warning, note, never, not 'errors'"),
        ({"fail-on": "warnings"}, "not 'warnings'; did you mean 'warning'"),
        ({"device": "emulator"}, "auto, cuda, emulated, not 'emulator'; did you mean 'emulated'"),
        ({"targets": [{"entry": "a.py", "mode": "train"}]}, "did you mean 'training'"),
        ({"fail-on": ["error"]}, r"must be one of .*, not \['error'\]"),
        ({"gpu": ""}, "'gpu' in .* must be a non-empty string, not ''"),
        ({"time-limit": float("nan")}, "a number above 0, not nan"),
        ({"targets": [{"entry": "a.py", "min-speedup": -1}]}, "a number of at least 0, not -1"),
        ({"jobs": -1}, "whole number of at least 0"),
        ({"jobs": True}, "whole number"),
        ({"iterations": 1}, "at least 2"),
        ({"time-limit": 0}, "above 0"),
        ({"allow-stale": "yes"}, "true or false"),
        ({"select": "GD1"}, "a list of strings"),
        ({"ignore": ["GD1999"]}, "names no rule: 'GD1999'; the nearest one is 'GD1"),
        ({"ignore": ["host-raed"]}, "nearest one is 'host-read'"),
        ({"per-file-ignores": ["GD1"]}, "a table of patterns"),
        ({"fail-on": "error", "fail_on": "note"}, "twice"),
        ({"targets": [{"entry": "a.py", "min_coverage": 90}]}, "a number from 0 to 1, not 90"),
    ],
)
def test_mistake_is_one_sentence(table: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as error:
        parse(table, where="pyproject.toml")
    assert "pyproject.toml" in str(error.value)


def test_nearest_file_upwards_holds_up_to_the_repository(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pyproject.toml": SECTION + 'fail-on = "never"\n',
            "repo/.git/HEAD": "",
            "repo/pyproject.toml": "[project]\nname = 'x'\n",
            "repo/sub/graphdoctor.toml": 'fail-on = "note"\n',
            "repo/sub/deep/file": "",
        },
    )
    assert load(tmp_path / "repo/sub/deep").settings.fail_on == "note"
    assert load(tmp_path / "repo/sub/deep").root == tmp_path / "repo/sub"
    assert load(tmp_path / "repo").settings.fail_on == "warning"


def test_own_file_wins_over_the_shared_one(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pyproject.toml": SECTION + 'fail-on = "never"\n',
            "graphdoctor.toml": 'fail-on = "note"\n',
        },
    )
    assert load(tmp_path).settings.fail_on == "note"


def test_overrides_win_and_need_no_quotes(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": SECTION + 'fail_on = "never"\njobs = 3\n'})
    overrides = ["fail-on=error", "jobs=2", 'per-file-ignores."a.py" = ["GD1"]']
    settings = load(tmp_path, overrides=overrides).settings
    assert (settings.fail_on, settings.jobs) == ("error", 2)
    assert settings.per_file_ignores == (("a.py", ("GD1",)),)


def test_override_may_be_a_file(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": SECTION + "jobs = 3\n", "other/ci.toml": "jobs = 5\n"})
    project = load(tmp_path, overrides=[str(tmp_path / "other/ci.toml")])
    assert project.settings.jobs == 5
    assert project.root == tmp_path / "other"


def test_isolated_takes_no_file(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": SECTION + "jobs = 3\n"})
    assert load(tmp_path, isolated=True).settings.jobs == 0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[tool.graphdoctor\n", "is not TOML"),
        ("[tool]\ngraphdoctor = 3\n", "must be a table"),
    ],
)
def test_broken_file_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    write(tmp_path, {"pyproject.toml": content})
    with pytest.raises(UsageError, match=sentence):
        load(tmp_path)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
targets = st.builds(
    TargetSettings,
    names,
    names,
    st.tuples(names),
    st.sampled_from([None, "training"]),
    st.builds(Budgets, max_syncs=st.integers(0, 9), min_coverage=st.sampled_from([None, 0.5])),
)


def test_text_of_settings_has_nothing_that_a_terminal_obeys() -> None:
    text = settings_toml(Settings((TargetSettings("a\x9b31m\u202e\n\x1b", "b.py"),)))
    assert all(char.isprintable() or char == "\n" for char in text)
    assert 'name = "a\\U0000009b31m\\U0000202e\\n' in text


@given(
    st.builds(
        Settings,
        st.lists(targets, unique_by=lambda one: one.name, max_size=3).map(tuple),
        exclude=st.lists(names, max_size=2).map(tuple),
        per_file_ignores=names.map(lambda name: ((name, ("GD1",)),)),
    )
)
def test_settings_that_are_shown_are_settings_again(settings: Settings) -> None:
    import tomllib

    again = parse(tomllib.loads(settings_toml(settings)), where="x")
    normal = tuple(
        TargetSettings(t.name, t.entry.replace("\\", "/"), t.input, t.mode, t.budgets, t.inputs)
        for t in settings.targets
    )
    assert again.targets == normal
    assert again.exclude == settings.exclude
    assert again.per_file_ignores == settings.per_file_ignores


def test_show_settings_names_the_file(tmp_path: Path, monkeypatch, capsys) -> None:
    write(tmp_path, {"pyproject.toml": SECTION + "jobs = 3\n"})
    monkeypatch.chdir(tmp_path)
    assert main(["show-settings", "--config", "fail-on=note"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# from [tool.graphdoctor] of pyproject.toml\n")
    assert "jobs = 3\n" in out and 'fail-on = "note"\n' in out


def _is_valid(table: dict[str, object], file: str = "graphdoctor.toml") -> bool:
    schema = settings_schema(file)
    jsonschema.Draft7Validator.check_schema(schema)
    return bool(jsonschema.Draft7Validator(schema).is_valid(table))


VALID: list[dict[str, object]] = [
    {},
    {"targets": ["a.py", {"entry": "b.py", "max-syncs": 0, "mode": "training"}]},
    {"targets": {"net": {"entry": "a.py", "inputs": "fixed", "input": ["8x3"]}}},
    {"select": ["GD", "GD1", "host-read"], "per-file-ignores": {"a/*.py": ["GD104"]}},
    {"fail-on": "never", "time-limit": 0.5, "jobs": 0, "iterations": 2, "values": "none"},
]
INVALID: list[dict[str, object]] = [
    {"fail_on": "error"},  # is read, and there is one spelling that is written
    {"fail-on": "errors"},
    {"time-limit": 0},
    {"jobs": -1},
    {"iterations": 1},
    {"targets": [{"name": "net"}]},
    {"targets": [{"entry": "a.py", "max-syncs": -1}]},
    {"targets": [{"entry": "a.py", "max_syncs": 1}]},
    {"targets": {"net": {"entry": "a.py", "name": "other"}}},
    {"ignore": ["host-raed"]},
    {"ignore": "GD1"},
    {"gpu": ""},
]


@pytest.mark.parametrize("table", VALID)
def test_schema_takes_what_the_settings_take(table: dict[str, object]) -> None:
    parse(table, where="x")
    assert _is_valid(table)
    assert _is_valid({"tool": {"graphdoctor": table, "ruff": {"select": 3}}}, "pyproject.toml")


@pytest.mark.parametrize("table", INVALID)
def test_schema_refuses_what_the_settings_refuse_or_spell_otherwise(
    table: dict[str, object],
) -> None:
    assert not _is_valid(table)
    assert not _is_valid({"tool": {"graphdoctor": table}}, "pyproject.toml")


def test_schema_says_of_every_setting_what_it_is_about() -> None:
    schema = settings_schema("graphdoctor.toml")
    target = schema["properties"]["targets"]["anyOf"][0]["items"]["anyOf"][1]
    found = [*schema["properties"].values(), *target["properties"].values()]
    assert len(found) == 27 and all(one["description"] for one in found)


def test_what_is_written_is_spelled_as_the_schema_has_it() -> None:
    limits = Budgets(max_syncs=0, min_coverage=0.5, min_change_us=2.0)
    settings = Settings(targets=(TargetSettings("net", "a.py", budgets=limits),))
    assert _is_valid(tomllib.loads(settings_toml(settings)))


def test_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show-settings", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == settings_schema("graphdoctor.toml")
    assert main(["show-settings", "--schema", "pyproject.toml"]) == 0
    assert "tool" in json.loads(capsys.readouterr().out)["properties"]
