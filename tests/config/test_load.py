"""Configuration: dotted names in every error, overrides accumulate, nothing is resolved or ignored."""

import contextlib
from pathlib import Path

import pytest

from aorta.config.load import cut_off, load_config, save_config
from aorta.config.schema import Config
from aorta.errors import ConfigError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_without_a_file_the_defaults_hold() -> None:
    assert load_config() == Config()


def test_overrides_accumulate_and_the_last_wins() -> None:
    config = load_config(None, ["training.max_steps=7", "model.num_layers=2", "training.max_steps=9"])
    assert (config.training.max_steps, config.model.num_layers) == (9, 2)


def test_an_override_wins_over_the_file_and_leaves_its_neighbours(tmp_path: Path) -> None:
    path = written(tmp_path, "training:\n  batch_size: 3\n  max_steps: 5\n")
    config = load_config(path, ["training.batch_size=4"])
    assert (config.training.batch_size, config.training.max_steps) == (4, 5)


@pytest.mark.parametrize("text", ["3e-4", "3.0e-4", "0.0003"])
def test_scientific_notation_is_a_number(tmp_path: Path, text: str) -> None:
    assert load_config(written(tmp_path, f"optimizer:\n  lr: {text}\n")).optimizer.lr == 3 / 10_000
    assert load_config(None, [f"optimizer.lr={text}"]).optimizer.lr == 3 / 10_000


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("training.batchsize=4", ["training.batchsize", "did you mean training.batch_size?"]),
        ("trainer.batch_size=4", ["unknown key trainer"]),
        ("training.batch_size=many", ["training.batch_size", "'many'", "int"]),
        ("training.batch_size=0", ["training.batch_size", "0", ">= 1"]),
        ("training.batch_size=1.5", ["training.batch_size", "1.5", "int"]),
        ("training.mixed_precision=fp8", ["training.mixed_precision", "'fp8'"]),
        ("optimizer.betas=[0.9]", ["optimizer.betas"]),
        ("training=3", ["training"]),
        ("training.batch_size", ["training.batch_size", "key.sub=value"]),
        ("=4", ["key.sub=value"]),
        ("training.batch_size=[", ["training.batch_size=["]),
    ],
)
def test_a_bad_override_names_the_key_what_it_was_and_what_is_allowed(
    override: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "origin"),
    [
        (["training.max_steps=lots"], "override 'training.max_steps=lots': training.max_steps is 'lots'"),
        (["training.max_steps=no", "training.max_steps=lots"], "override 'training.max_steps=lots'"),
        (["optimizer.betas=[x,0.9]"], "override 'optimizer.betas=[x,0.9]': optimizer.betas[0]"),
        (["training.max=1"], "override 'training.max=1'"),
        (["training.batch_size=4"], "config.yaml: training.max_steps is 'many'"),
    ],
)
def test_a_wrong_value_is_laid_to_where_it_comes_from(
    tmp_path: Path, overrides: list[str], origin: str
) -> None:
    path = written(tmp_path, "training:\n  max_steps: many\n" if "batch_size" in overrides[0] else "")
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert origin in str(caught.value)


def test_a_bad_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "dataloader:\n  workers: 3\n")
    with pytest.raises(ConfigError, match=r"config\.yaml: unknown key dataloader\.workers"):
        load_config(path)


@pytest.mark.parametrize(
    "text", ["a: [", "- 1\n- 2\n", "just text", "a: !!python/object/apply:os.system ['true']"]
)
def test_files_that_are_no_configuration_are_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load_config(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        load_config(tmp_path / "nowhere.yaml")


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "")) == Config()


def test_interpolations_are_never_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_SECRET", "hunter2")
    path = written(tmp_path, "training:\n  output_dir: ${oc.env:PLANTED_SECRET}\n")
    assert load_config(path).training.output_dir == "${oc.env:PLANTED_SECRET}"


def test_saved_configurations_load_as_they_were(tmp_path: Path) -> None:
    config = load_config(
        None, ["training.max_steps=0", "optimizer.betas=[0.5,0.6]", "compile.options={a: 1}"]
    )
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(tmp_path / "saved.yaml") == config


def test_a_saved_file_is_whole_and_none_of_its_beginnings_is(tmp_path: Path) -> None:
    path = tmp_path / "saved.yaml"
    save_config(load_config(None), path)
    text = path.read_text()
    assert cut_off(path) is None
    lines = text.splitlines(keepends=True)
    # Without its last line, `...`, it is one of an older version.
    for count in range(1, len(lines) - 1):
        path.write_text("".join(lines[:count]))
        with contextlib.suppress(ConfigError):  # cut after the name of a block or a list
            load_config(path)
            assert "defaults are used" in (cut_off(path) or "")
    path.write_text(text.replace("\n...", "")[:-2])
    assert cut_off(path) == "is cut off; its last value may be cut as well"


@pytest.mark.parametrize(
    "gone", ["  kernel_interval: 0\n", "workload: ranking\n", "  alloc_retries_per_step: 0.1\n"]
)
@pytest.mark.parametrize("end", ["...\n", ""])
def test_a_key_that_an_older_version_did_not_have_is_no_damage(tmp_path: Path, gone: str, end: str) -> None:
    """But for the last key without an end after it, which may have been cut off."""
    path = tmp_path / "saved.yaml"
    save_config(load_config(None), path)
    text = path.read_text().removesuffix("...\n")
    assert gone in text
    path.write_text(text.replace(gone, "") + end)
    last = text.endswith(gone)
    assert (cut_off(path) is not None) is (last and not end)
    assert load_config(path) == load_config(None)


def test_a_configuration_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "config.yaml"
    mine.write_text("training: {max_steps: 5}\n")
    with pytest.raises(ConfigError, match="is not the resolved configuration of a run"):
        save_config(load_config(None), mine)
    assert mine.read_text() == "training: {max_steps: 5}\n"
    mine.unlink()
    for _ in range(2):  # one that a run wrote is
        save_config(load_config(None), mine)
    assert load_config(mine) == load_config(None)
