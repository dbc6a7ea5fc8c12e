"""The command line as a person meets it: help, mistakes, and what is imported when."""

import subprocess
import sys
import time

import pytest

from serve.cli import build_parser, main
from serve.config import ROLES, settings_table

COMMANDS = (*ROLES, "generate", "chat", "profile", "status", "demo")


def help_of(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_the_overview_names_every_subcommand_and_first_steps(capsys):
    text = help_of(capsys)
    for command in COMMANDS:
        assert f"\n    {command} " in text
    assert "python -m serve demo" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_subcommand_teaches_by_example(capsys, command):
    text = help_of(capsys, command)
    assert "example" in text and f"python -m serve {command}" in text
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize("role", ROLES)
def test_a_server_offers_exactly_the_flags_of_its_role(capsys, role):
    text = help_of(capsys, role)
    for row in settings_table():
        flag = f"--no-{row.flag[2:]}" if row.kind is bool else row.flag
        assert (f"  {flag} " in text) == (role in row.roles), row.name


def test_print_config_shows_values_and_their_sources(capsys):
    assert main(["local", "--pages", "7", "--no-reflection", "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("pages = 7 ") and "flag --pages" in line for line in lines)
    assert any(line.startswith("reflection = false") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["local", "--pages", "x"], "flag --pages: seen 'x', expected an integer of at least 0"),
        (["decode"], "flag --prefill"),
        (["generate", "--target", "x", "--prompt", "a"], "flag --target: seen 'x'"),
        (["generate", "--prompt", "a", "--concurrency", "0"], "flag --concurrency: seen 0"),
        (["generate", "--prompt", "a", "--timeout", "0"], "flag --timeout"),
        (["chat", "--target", "x", "--prompt", "a"], "flag --target: seen 'x'"),
        (["chat", "--prompt", "a", "--timeout", "0"], "flag --timeout"),
        (["chat", "--messages", "/nowhere"], "flag --messages: seen '/nowhere'"),
        (["profile", "--seconds", "100"], "flag --seconds: seen 100.0"),
        (["demo", "--requests", "0"], "flag --requests: seen 0"),
        (["demo", "--model", "/nowhere"], "flag --model: seen '/nowhere'"),
    ],
)
def test_a_mistake_is_one_line_with_flag_value_and_expectation(capsys, arguments, words):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_folder_without_a_model_is_an_error_before_anything_starts(tmp_path, capsys):
    assert main(["local", "--model", str(tmp_path), "--listen", "127.0.0.1:0"]) == 2
    assert f"flag --model: seen '{tmp_path}'" in capsys.readouterr().err


def test_help_answers_at_once_and_loads_neither_jax_nor_grpc():
    code = (
        "import sys\n"
        "from serve.cli import main\n"
        "try:\n    main(['decode', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'jax', 'grpc', 'numpy', 'rich', 'dsv4', 'disagg'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 5  # 0.1 s on an idle machine


def test_parsing_leaves_ungiven_settings_ungiven():
    options = build_parser().parse_args(["prefill", "--pages", "5"])
    given = {row.name for row in settings_table() if getattr(options, row.name, None) is not None}
    assert given == {"pages"}
