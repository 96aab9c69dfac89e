"""Values in commands: a real shell gets each as one word, wherever `misplaced` lets it stand."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from lightagentd.config.flows.references import MISSING, Reference
from lightagentd.config.flows.shell import MOST_BYTES, is_command, misplaced, quoted_for_shell, read_again
from lightagentd.errors import InvalidArgument

_SAID = ", where it cannot be quoted; put it outside: it is one word"
TEMPLATES = 300


def where(template: str) -> str:
    return misplaced(template).removeprefix("{x} stands ").removesuffix(_SAID)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("echo '{x}'", "in single quotes"),
        ("echo '{x}", "in single quotes"),
        ("(true)# '\n' {x}", "in single quotes"),
        ("echo \\ #' {x}", "in single quotes"),
        ("# a \\\n' {x}", "in single quotes"),
        ("echo {y}#'\n{x}'", "in single quotes"),
        ('echo "{x}"', "in double quotes"),
        ('echo "$(echo "{x}")"', "in double quotes"),
        ('"$(echo {y})" "{x}"', "in double quotes"),
        ("echo \\{x}", "behind a backslash"),
        ("echo ${x}", "behind $"),
        ("echo a${x}b", "behind $"),
        ("true # {x}", "in a comment"),
        ("true;#{x}", "in a comment"),
        ("(true)#{x}", "in a comment"),
        ("$(#{x}\n)", "in a comment"),
        ("a[{x}]=1", "in or behind an index"),
        ("a[1 + {x}]=1", "in or behind an index"),
        ("a['b']=1 {x}", "in or behind an index"),
        ("echo `{x}`", "in or behind backquotes"),
        ('echo "`date`" {x}', "in or behind backquotes"),
        ("echo $'\\'' {x}", "in or behind $'...'"),
        ("echo $(({x}))", "in or behind arithmetic"),
        ("(({x}))", "in or behind arithmetic"),
        ("echo $[{x}]", "in or behind arithmetic"),
        ('echo "$[{x}]"', "in or behind arithmetic"),
        ('"$((a[1]))" {x}', "in or behind arithmetic"),
        ("echo ${{a:-{x}}}", "in or behind ${...}"),
        ('echo "${{a:-"b"}}" {x}', "in or behind ${...}"),
        ("cat <<E\n{x}\nE", "in or behind a here-document"),
        ("cat <<-E {x}", "in or behind a here-document"),
        ("a=({x})", "in or behind a list"),
        ("$(case a in a) echo {x};; esac)", "in or behind a case in parentheses"),
        ("[[ 1 -eq {x} ]]", "in or behind [[, use ["),
        ("shopt -s extglob\n echo {x}", "in or behind shopt"),
        ("alias a='b'; {x}", "in or behind alias"),
        ("echo $\\\n({x})", "in or behind a line that goes on within a word"),
        ("cat <\\\n<E {x}", "in or behind a line that goes on within a word"),
    ],
)
def test_a_reference_that_cannot_be_quoted_is_told(template: str, said: str) -> None:
    assert where(template) == said


@pytest.mark.parametrize(
    "template",
    [
        "{x}",
        "echo a{x}b {x}{x} -n={x}",
        "a={x} b={x} env",
        "cat <<<{x} >{x} 2>&1",
        'test "$(date "+%s")" = {x}',
        '"${{a}}" ${{a[1]}} ${{#a}} $(( 1 + 2 )) "$((1+2))" {x}',
        "echo $$ $# $? a#b \\# '#' \"#\" {x} # it's",
        "ls a[0-9]*[b] {x}; [ {x} = a ] && [[b]] {x}",
        "case {x} in a|b) echo {x};; esac",
        "for i in {x}; do ( echo {x} ) | cat <(echo {x}); done",
        "one && \\\n  two {x} \\\n  {x}",
        "echo 'it'\\''s' \"a \\\"b\\\" \\$(\" {x}",
        "f() {{ echo {x}; }}; $(f)#'{{' {x}",
    ],
)
def test_a_reference_where_words_are_read_is_right(template: str) -> None:
    assert misplaced(template) == ""


def test_what_no_command_can_be_is_told() -> None:
    assert misplaced("a\0b") == "a NUL byte stands in it"
    assert misplaced("é" * (MOST_BYTES // 2)) == ""
    assert "more than 131071 bytes" in misplaced("é" * (MOST_BYTES // 2 + 1))
    with pytest.raises(ValueError, match="broken"):
        misplaced("echo {")
    for value in ("a\0b", "\ud800"):
        with pytest.raises(InvalidArgument, match="which no command can have"):
            quoted_for_shell("echo {x}", lambda _, value=value: value)  # type: ignore[misc]
    with pytest.raises(InvalidArgument, match="does not exist"):
        quoted_for_shell("echo {x}", lambda _: MISSING)


def test_values_of_other_types_are_words_too() -> None:
    values = {"a": None, "b": True, "c": 1.5, "d": {"e": ["f'"]}, "g": ""}
    made = quoted_for_shell("e {a}{b} {c} {d} {g} {h?}", lambda one: values.get(one.to, MISSING))
    assert made == "e 'null''true' '1.5' '{\"e\": [\"f'\"'\"'\"]}' '' ''"


def test_which_arguments_a_shell_reads() -> None:
    assert is_command("bash.exec", "command")
    assert not is_command("bash.exec", "cwd")
    assert not is_command("file.write", "command")


@pytest.mark.parametrize(
    ("template", "program"),
    [
        ("eval {x}", "eval"),
        ("sudo bash -ec {x}", "bash -ec"),
        ("true; ssh host ls {x}", "ssh"),
        ("declare -i a={x}", "declare -i"),
        ("echo {x}; eval a", ""),
        ("ls /etc/ssh {x}", ""),
        ("cat a.sh -c {x}", ""),
        ("a=eval; echo {x}", ""),
    ],
)
def test_a_program_that_reads_its_words_again_is_known(template: str, program: str) -> None:
    assert read_again(template) == program


# A real shell

_PIECES = (
    *("'", '"', "`", "$", "(", ")", "{{", "}}", "[", "]", "#", "\\", "\n", " ", "; ", "&& ", "| ", "< ", "="),
    *("show ", "show ", "show ", "{x}", " {x} ", "{y}", "$(", '"$(show ', '")', "$((", "))", "<<<", "<<E\n"),
    *("\nE\n", "case a in ", "a) ", ";;", " esac", "$$", "$'", '$"', "${{a}}", "${{a", "[[ ", " ]]", "\\\n"),
    *(" # ", "A=", "a[", "a[1", "f() ", "if true; then ", "; fi", "for i in ", "; do ", "; done", "!", "~"),
)
_WORDS = (
    *("a", "{x}", "{y}", "{x}b", "a{x}", "{x}{y}", "a={x}", '"q"{x}', "'q'{x}", '{x}"$a"', "~{x}", "[{x}]"),
    *("{x}#a", "a#{x}", "\\ {x}", "\\#{x}", "$a{x}", "$#{x}", "$${x}", "{x}{{1,2}}", "{{a,{x}}}", "'#'"),
    *('"#"',),
    *("'it'", "\\'", '\\"', "'\"'", '"\'"', '"${{a}}"', "$((1+2))", "\\\\", "\\`", '"\\`"', '"\\\\"'),
    *("'\\'", '"#"'),
    # of these all are refused, or what is behind them
    *("${x}", "$'\\''", '"{x}"', '"$(show "{x}")"', "\\{x}", "#'", "$(({x}))"),
    *("$(case w in w) show {x};; esac)",),
    *('"$(case w in w) show "{x}";; esac)"', "$(show)#'", "\\\n#'", "`{x}`", "${{a:-{x}}}", "[[ {x} ]]"),
)
_BEGINS = ("", "", "A={x} ", 'A={x}; show "$A"; ', "A[{x}]=1 ", "A[1 + {x}]=1; ")
_ENDS = ("", "", " <<<{x}", " 2>/dev/null", " {x}>&2", " # it's", "\n")


def _command(rng: random.Random, depth: int = 0) -> str:
    below = depth + 1

    def word() -> str:
        kind = rng.random() if depth < 3 else 1
        if kind < 0.1:
            return f'"$({_command(rng, below)})"'
        if kind < 0.15:
            return f'"a $({_command(rng, below)}) \\" \\$( b"'
        return f"$({_command(rng, below)})" if kind < 0.2 else rng.choice(_WORDS)

    def simple() -> str:
        words = " ".join(word() for _ in range(rng.randint(1, 3)))
        return f"{rng.choice(_BEGINS)}show {words}{rng.choice(_ENDS)}\n"

    kind = rng.randint(0, 9) if depth < 3 else 0
    return {
        5: lambda: _command(rng, below) + rng.choice(("", "! ", "\\\n")) + _command(rng, below),
        6: lambda: f"( {_command(rng, below)} )",
        7: lambda: f"case w in z|y) {simple()};; w) {simple()} ;; esac",
        8: lambda: f"for i in {word()}; do {simple()} done",
        9: lambda: "".join(rng.choices(_PIECES, k=rng.randint(3, 12))),
    }.get(kind, simple)()


def _templates(rng: random.Random) -> list[str]:
    found: list[str] = []
    while len(found) < TEMPLATES:
        made = _command(rng)
        try:
            if "{x}" in made and not misplaced(made):
                found.append(made)
        except ValueError:
            pass
    return found


def _hostile(mark: Path) -> list[str]:
    run = f"touch {mark}"
    return [
        *(f"';{run};'", f'";{run};"', f"$({run})", f"`{run}`", f"\n{run}\n", f"\\'; {run} #", f"x;{run}"),
        *(f"')\"; {run}; \"('", f"'\n'\"\n{run}\n", f"|{run}", f"a[$({run})]", f"&{run}&"),
        *(f"{{{{ {run}; }}}}",),
        *("a b", "-n", "--", "'", '"', "\\", "$a", "* ?", "~", "#x", "A=b", "if", "2", "}", ")", "("),
        *("{a,b}",),
        *("é ☃ 🙂", "$'\\'", "[[", "\r\n", "\ttab ", "!!", "{1..5}", "\x01\x7f\x1b[m", "x'" * 3000, "<<E"),
        *("${a",),
    ]


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_a_real_shell_gets_each_value_as_one_word(shell: str, tmp_path: Path) -> None:
    """What the commands show with plain words is what they show with others in their places."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    rng = random.Random(18)
    values, templates = _hostile(tmp_path / "mark"), _templates(rng)
    taken = [{"x": rng.choice(values), "y": rng.choice(values)} for _ in templates]
    plain = {"x": "Qx1z", "y": "Qy1z"}
    jobs: list[str] = []
    for template, each in zip(templates, taken, strict=True):
        for given in (plain, each):

            def look_up(reference: Reference, given: dict[str, str] = given) -> str:
                return given[reference.to]

            jobs.append(quoted_for_shell(template, look_up))
    folder = tmp_path / "folder"
    folder.mkdir()
    lines = [
        'show() { printf \'%s\\0\' "$#" "$@" .; }; a=value; set -f; IFS=',
        *(f"( eval {_as_word(job)} ) 2>/dev/null </dev/null; printf '\\0-- \\0'" for job in jobs),
    ]
    driver = tmp_path / "driver"
    driver.write_text("\n".join(lines))
    done = subprocess.run([shell, str(driver)], cwd=folder, capture_output=True, check=False, timeout=60)
    outputs = done.stdout.decode().split("\0-- \0")
    assert len(outputs) == len(jobs) + 1
    shown = 0
    for number, (template, each) in enumerate(zip(templates, taken, strict=True)):
        expected = outputs[2 * number]
        shown += "Q" in expected
        for name, one in plain.items():
            expected = expected.replace(one, each[name])
        assert outputs[2 * number + 1] == expected, (template, each)
    assert shown > TEMPLATES / 2
    assert not (tmp_path / "mark").exists()
    assert list(folder.iterdir()) == []


def _as_word(text: str) -> str:
    """Written in another way than the code that is tested."""
    return "'" + text.replace("'", "'\\''") + "'"
