"""How `--override a=1 b=2` is read."""

import click
import pytest
from click.testing import CliRunner

from aorta.commands._options import GpuCount
from aorta.commands._overrides import OverrideCommand, spread_overrides


@click.command(cls=OverrideCommand, context_settings={"allow_interspersed_args": False})
@click.option("--override", "overrides", multiple=True)
@click.option("--flag", is_flag=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def probe(overrides: tuple[str, ...], flag: bool, command: tuple[str, ...]) -> None:
    click.echo(f"{list(overrides)} {flag} {list(command)}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--override a=1 b.c=2 --flag", "['a=1', 'b.c=2'] True []"),
        ("--override a=1 --override b=2 c=3", "['a=1', 'b=2', 'c=3'] False []"),
        ("--override=a=1 b=2", "['a=1', 'b=2'] False []"),
        (
            "--override a=1 b=-2 --flag -- x.py --override c=3 d=4",
            "['a=1', 'b=-2'] True ['x.py', '--override', 'c=3', 'd=4']",
        ),
        ("--flag a=1", "[] True ['a=1']"),
        ("--override a=1 x.py --lr=3", "['a=1'] False ['x.py', '--lr=3']"),
    ],
)
def test_all_values_count(words: str, expected: str) -> None:
    result = CliRunner().invoke(probe, words.split())
    assert result.output == expected + "\n"


def test_values_with_spaces_and_brackets_stay_whole() -> None:
    words = ["--override", "a.b=[1, 2]", "c=x y"]
    assert spread_overrides(words) == ["--override", "a.b=[1, 2]", "--override", "c=x y"]


@pytest.mark.parametrize("given", ["a100:4", "gpu:a100:4", "gpu:4"])
def test_a_type_of_gpu_is_refused_with_the_form_that_works(given: str) -> None:
    with pytest.raises(click.BadParameter, match=r"Use --gpus-per-node 4, .*--constraint or --partition"):
        GpuCount(min=0).convert(given, None, None)


def test_a_number_of_gpus_is_taken() -> None:
    assert [GpuCount(min=0).convert(text, None, None) for text in ("0", "4")] == [0, 4]
    with pytest.raises(click.BadParameter):
        GpuCount(min=0).convert("-1", None, None)
