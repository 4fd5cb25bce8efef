import pytest

from ridgeline.errors import ConfigError
from ridgeline.study.launch.shell import follow, slurm_options
from ridgeline.study.launch.shell_words import line_of, split
from ridgeline.study.launch.sources import PLACEHOLDER, LaunchSource, plain


def shown(word: str) -> str:
    return PLACEHOLDER.sub(lambda found: f"<{found['name']}>", plain(word))


def commands(text: str, **set_: str) -> list[str]:
    script = follow(LaunchSource("script.sh", text, set_))
    return [" ".join(map(shown, command.words)) for command in script.commands]


def run(text: str, **set_: str) -> str:
    """Return the words of the only command."""
    (found,) = commands(text, **set_)
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=4; run --n $A", "run --n 4"),
        ("A=4\nrun --n ${A}x", "run --n 4x"),
        ("run ${A:-8}", "run 8"),
        ("A=\nrun ${A:-8} ${A-9}", "run 8"),
        ("A=2\nrun ${A:+yes} ${B:+no}", "run yes"),
        (
            "A=a.b.c; run ${A%.*} ${A%%.*} ${A#*.} ${A##*.} ${A//./-} ${#A}",
            "run a.b a b.c c a-b-c 5",
        ),
        ("A=Ab; run ${A,,} ${A^^} ${A:0:1}", "run ab AB A"),
        ("A=3; B=A; run ${!B}", "run 3"),
        ("A=3; B=4; run $((A * B + 2**3)) $(( ($A-1)/2 )) $((7 % 4)) $((1 << 3))", "run 20 1 3 8"),
        ("A=(x 'y z' w); run ${A[1]} ${#A[@]}", "run y z 3"),
        ('A=(x "y z"); run "${A[@]}"', "run x y z"),
        ("A=(x) \nA+=(y) \nrun ${A[@]} ${A[*]}", "run x y x y"),
        ("declare -A A=([k]=v [l]=w); run ${A[l]}", "run w"),
        ("A=a; A+=b; run $A", "run ab"),
        ("export A=1 B=2; run $A$B", "run 12"),
        ("A='$B'; run $A", "run $B"),
        (r'B=x; A="a\"$B\" \$B"; run $A', 'run a"x" $B'),
        ("run a \\\n  b # c\n", "run a b"),
        ("A=$(echo a   b); run $A", "run a b"),
        ("A=`expr 3 \\* 4`; run $A", "run 12"),
        ("A=$(basename /x/y.sh .sh); run $A", "run y"),
        ("run $(hostname) $UNSET", "run <$(hostname)> <UNSET>"),
        ("run $1 $@ ${2:-d}", "run <$1> d"),
        ("f() { run $1 $#; }\nf a b", "run a 2"),
        ("IFS=',' read -r A B <<< '4,5'; run $B $A", "run 5 4"),
        ("set -- p q; run $@", "run p q"),
    ],
)
def test_words(text: str, words: str) -> None:
    assert run(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("if [ 3 -gt 2 ]; then run a; else run b; fi", "run a"),
        ("A=x; if [[ $A == y* ]]; then run a; elif [ $A = x ]; then run b; fi", "run b"),
        ("if [ -z $UNSET ]; then run a; fi", "run a"),
        ("if [ -n '' ] || ! [ 1 -eq 2 ]; then run a; fi", "run a"),
        ("if [ 1 -eq 1 -a 2 -eq 3 ]; then run a; else run b; fi", "run b"),
        ("[ a = a ] && run a", "run a"),
        ("false || run a", "run a"),
        ("case b in a) run a;; b|c) run b;; *) run c;; esac", "run b"),
        ("while [[ $# -gt 0 ]]; do run a; done; run b", "run b"),
        ("if [ a = a ]; then echo bad; exit 1; fi; run a", "run a"),
        ("run a; exit 0; run b", "run a"),
    ],
)
def test_conditions(text: str, words: str) -> None:
    assert run(text) == words


def test_a_condition_that_the_file_leaves_open_makes_a_placeholder() -> None:
    text = "if [ $1 = big ]; then A=8; else A=4; fi; B=2; run $A $B"
    assert run(text) == "run <$1> 2"
    assert run(text, **{"1": "big"}) == "run 8 2"
    assert run("if [ -f x ]; then A=8; fi; run $A") == "run <A>"
    assert run("if [ -f x ]; then A=8; else A=8; fi; run $A") == "run 8"


def test_what_runs_only_perhaps_is_not_certain() -> None:
    script = follow(LaunchSource("s.sh", "if [ -f x ]; then run a; fi; run b"))
    assert [command.certain for command in script.commands] == [False, True]


def test_loops_turn_over_their_words() -> None:
    assert commands("for i in 1 2; do run $i; done") == ["run 1", "run 2"]
    assert commands("for i in 1 2; do run $i; done", i="2") == ["run 2"]
    assert commands("for i in $(ls); do run $i; done") == ["run <i>"]


def test_commands_that_are_given_as_text() -> None:
    assert commands("C='x --a'; bash -c \"$C b\"") == ["x --a b"]
    assert commands("C='x --a'; srun -l bash -c '$C b'") == ["srun -l", "x --a b"]
    assert commands('A=1; eval "run $A"') == ["run 1"]
    assert commands("A=1\nbash <<EOF\nrun $A\nEOF") == ["run 1"]
    assert commands("sbatch <<'EOF'\n#SBATCH -N 3\nrun $SLURM_NNODES\nEOF") == ["sbatch", "run 3"]
    assert commands("cat > w.sh <<E\nrun a\nE\nbash w.sh") == ["run a"]
    assert commands('W=$(cat <<- E\n  run a\nE\n)\necho "$W" > w.sh\nt bash w.sh') == ["t", "run a"]


def test_documents_are_kept_with_the_values_of_variables() -> None:
    script = follow(LaunchSource("s.sh", 'Z=2\ncat <<E > c.json\n{"stage": $Z, "x": "\\$Z"}\nE\n'))
    assert plain(script.documents["c.json"]) == '{"stage": 2, "x": "$Z"}'
    script = follow(LaunchSource("s.sh", "Z=2\ncat <<'E' > c.json\n$Z\nE\n"))
    assert plain(script.documents["c.json"]) == "$Z"


def test_slurm_options_set_the_variables_of_the_batch_system() -> None:
    text = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node 8\n#SBATCH -J name # why\nrun $SLURM_NNODES"
    assert slurm_options(text) == {
        "nodes": ("4", 1), "gpus-per-node": ("8", 2), "job-name": ("name", 3),
    }  # fmt: skip
    assert run(text) == "run 4"


def test_every_word_knows_its_line() -> None:
    text = 'A=(\n  --a 1\n  --b 2\n)\nB="--c 3 \\\n  --d 4"\nrun ${A[@]} $B --e\n'
    (command,) = follow(LaunchSource("s.sh", text)).commands
    lines = {plain(word): line_of(word) for word in command.words}
    assert lines == {
        "run": 7, "--a": 2, "1": 2, "--b": 3, "2": 3, "--c": 5, "3": 5, "--d": 6, "4": 6, "--e": 7,
    }  # fmt: skip


def test_other_files_are_followed_where_they_are_there(tmp_path) -> None:
    (tmp_path / "more.sh").write_text("A=5\n")
    path = tmp_path / "s.sh"
    script = follow(LaunchSource(str(path), "source $(dirname $0)/more.sh\nsource gone.sh\nrun $A"))
    assert [plain(word) for word in script.commands[0].words] == ["run", "5"]
    assert script.sources == [("gone.sh", 2)]


def test_values_that_the_user_sets_replace_assignments() -> None:
    assert run("A=1; A=2; run $A", A="7") == "run 7"


def test_split_keeps_placeholders_whole() -> None:
    assert [plain(word) for word in split(" a  b\n c ")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run 'a", "single quote"),
        ('run "a', "double quote"),
        ("run $(a", "'(' is not closed"),
        ("if true; then run", "'fi' is missing"),
        ("for i in a b; run; done", "'do' is missing"),
        ("A=x\nfor i in $(seq 1 100); do A=$A$A; done", "grows too long"),
        ("( " * 60, "nested too deeply"),
    ],
)
def test_what_cannot_be_followed_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"shell: ") as error:
        follow(LaunchSource("s.sh", text))
    assert message in str(error.value)


def test_scripts_that_never_end_are_not_followed_for_ever() -> None:
    loops = "for a in $(seq 1 100); do " * 3 + "x=1; " + "done; " * 3
    with pytest.raises(ConfigError, match="too many commands"):
        follow(LaunchSource("s.sh", loops))
    assert commands("f() { f; }; f") == []
