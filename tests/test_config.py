"""YAML files as data: what is refused, and that every refusal says where."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import strategies as st
from pydantic import Field, model_validator

from ridgeline.bounded_files import MAX_BYTES
from ridgeline.config import (
    Document,
    FieldError,
    Strict,
    load,
    overridden,
    parse_yaml,
    read_yaml,
    validate,
)
from ridgeline.errors import ConfigError
from ridgeline.yaml_nodes import MAX_DEPTH
from thoroughly import sample_of


def refused(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "file.yaml")
    assert caught.value.file == "file.yaml"
    return caught.value


def test_plain_values_keep_their_type() -> None:
    text = """
    text: hello
    quoted: "5"
    number: 5
    octal-looking: 0o17
    big: 1_000
    real: 1.5e3
    yes-is-text: yes
    truth: true
    nothing: null
    tilde: ~
    empty:
    date: 2016-04-05
    list: [1, a, {b: c}]
    7: seven
    """
    assert parse_yaml(text, "f").data == {
        "text": "hello",
        "quoted": "5",
        "number": 5,
        "octal-looking": 15,
        "big": 1000,
        "real": 1500.0,
        "yes-is-text": "yes",
        "truth": True,
        "nothing": None,
        "tilde": None,
        "empty": None,
        "date": "2016-04-05",
        "list": [1, "a", {"b": "c"}],
        "7": "seven",
    }


def test_every_value_knows_its_line() -> None:
    document = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", "f")
    assert document.where(("b", 1, "c")) == (4, 6)
    assert document.where(("b", 0)) == (3, 5)
    assert document.where(("b", 7, "nowhere")) == (2, 1)


def test_aliases_are_values_where_they_stand() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\n", "f").data == {"a": [1, 2], "b": [1, 2]}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\na: 2\n", 2, "'a' stands twice"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, "'c' stands twice"),
        ("7: a\n'7': b\n", 2, "'7' stands twice"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "tag"),
        ("a: !custom 5\n", 1, "tag"),
        ("a: !!binary aGk=\n", 1, "tag"),
        ("a: !!set {x, y}\n", 1, "tag"),
        ("a: &x\n  b: 1\nc:\n  <<: *x\n", 4, "tag"),
        ("a: [1, 2\nb: 3\n", 2, "not YAML"),
        ("a: 'x\n", 2, "not YAML"),
        ("a:\n\t- 1\n", 2, "not YAML"),
        ("a: *nothing\n", 1, "not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "not YAML"),
        ("null: 1\n", 1, "a key must be"),
        ("[1, 2]: 1\n", 1, "a key must be"),
        ("true: 1\n", 1, "a key must be"),
        ("", 1, "empty"),
        ("# only a comment\n", 1, "empty"),
    ],
)
def test_a_mistake_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    error = refused(text)
    assert message in str(error)
    assert error.line == line


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "values" in str(refused("\n".join(lines)))


def test_an_alias_of_itself_is_refused() -> None:
    assert f"deeper than {MAX_DEPTH}" in str(refused("a: &a [*a]\n"))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 200, 3_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    refused("[" * depth + "]" * depth)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "a: " + "{a: " * 100_000, "- " * 100_000, "? " * 100_000]
)
def test_nesting_that_would_end_the_process_is_refused(text: str) -> None:
    assert f"deeper than {MAX_DEPTH}" in str(refused(text))


def test_a_long_flat_file_is_read() -> None:
    data = parse_yaml("- {a: [1, 2]}\n" * 2_000, "f").data
    assert data == [{"a": [1, 2]}] * 2_000


def test_nesting_up_to_the_limit_is_read() -> None:
    data = parse_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "f").data
    for _ in range(MAX_DEPTH):
        (data,) = data
    assert data == []


def test_a_number_of_many_digits_is_refused() -> None:
    assert "a: a number of more than 300 digits" in str(refused(f"a: {'9' * 5000}\n"))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        read_yaml(tmp_path)
    with pytest.raises(ConfigError, match="No such file"):
        read_yaml(tmp_path / "missing.yaml")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"1:10: not UTF-8 text \(byte 9\)"):
        read_yaml(file)
    file.write_bytes("kind: é\nname: '\x00'\n".encode())
    with pytest.raises(ConfigError, match="2:8: not YAML"):
        read_yaml(file)


def test_indentation_that_nests_too_deep_is_said_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("".join(" " * i + "a:\n" for i in range(1500)))
    with pytest.raises(ConfigError, match=r"41:41: nested deeper than 40 levels"):
        read_yaml(file)


def test_a_file_of_any_size_is_refused_above_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_yaml(file)


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    for text in ("a: 1\n", "a: 2\n", "a: 1\n"):
        file.write_text(text)
        assert read_yaml(file).data == {"a": int(text[3])}


def test_umlauts_are_read(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("name: Zürich µs 日本\n", encoding="utf-8")
    assert read_yaml(file).data == {"name": "Zürich µs 日本"}


class Wheel(Strict):
    radius: float
    spokes: int = Field(default=20, ge=3)
    pass_: str = Field(default="", alias="pass")


class Cart(Strict):
    """Two wheels."""

    name: str
    wheels: dict[str, Wheel] = Field(default_factory=dict)
    load: tuple[int, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _has_wheels(self) -> Cart:
        for position, item in enumerate(self.load):
            if item < 0:
                raise FieldError("a load is at least 0", "load", position)
        return self


CART = "name: cart\nwheels:\n  left: {radius: 1.5}\n  right:\n    radius: 2\n    spokes: 8\n"


def cart_error(text: str, tmp_path: Path) -> ConfigError:
    file = tmp_path / "cart.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file, Cart)
    assert caught.value.file == str(file)
    return caught.value


def test_a_file_fits_its_schema(tmp_path: Path) -> None:
    file = tmp_path / "cart.yaml"
    file.write_text(CART)
    cart = load(file, Cart)
    assert cart.wheels["right"].spokes == 8
    assert cart.wheels["left"].radius == 1.5


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "message"),
    [
        ("spokes", "spoke", 6, "wheels.right.spoke", "did you mean 'spokes'"),
        ("radius: 2", "radious: 2", 5, "wheels.right.radious", "did you mean 'radius'"),
        ("spokes: 8", "spokes: 2", 6, "wheels.right.spokes", "greater than or equal to 3"),
        ("spokes: 8", "spokes: '8'", 6, "wheels.right.spokes", "found '8'"),
        ("spokes: 8", "spokes: 8.0", 6, "wheels.right.spokes", "found 8.0"),
        ("spokes: 8", "spokes: true", 6, "wheels.right.spokes", "found True"),
        ("radius: 1.5", "radius: .nan", 3, "wheels.left.radius", "finite"),
        ("radius: 1.5", "radius: .inf", 3, "wheels.left.radius", "finite"),
        ("radius: 1.5", "spokes: 5", 3, "wheels.left", "'radius' is missing"),
        ("spokes: 8", "pas: x", 6, "wheels.right.pas", "did you mean 'pass'"),
        ("name: cart", "load: [1, -2]\nname: cart", 1, "load.1", "at least 0"),
    ],
)
def test_a_mistake_is_named_with_line_and_field(
    old: str, new: str, line: int, field: str, message: str, tmp_path: Path
) -> None:
    assert old in CART
    error = cart_error(CART.replace(old, new), tmp_path)
    assert (error.line, error.field) == (line, field)
    assert message in str(error)


def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    assert "mapping" in str(cart_error("- 1\n- 2\n", tmp_path))
    assert "mapping" in str(cart_error("hello\n", tmp_path))


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    for end in range(len(CART)):
        file = tmp_path / "cart.yaml"
        file.write_text(CART[:end])
        try:
            cart = load(file, Cart)
        except ConfigError as refusal:
            named = refusal.file
        else:
            named = str(file) if cart.name else None  # what is left is a cart of fewer parts
        assert named == str(file)


def test_an_override_replaces_one_value_and_leaves_the_document_alone() -> None:
    document = parse_yaml("a: {b: [1, {c: 2}], d.e: {f: 3}}\nq: {value: 5 W, source: x}\n", "f")
    before = repr(document.data)
    changed = overridden(
        document, {"a.b.1.c": 7, "a.d.e.f": 8, "q": "6 W", "new": 1, "a.b.0": "zero"}
    )
    assert changed.data == {
        "a": {"b": ["zero", {"c": 7}], "d.e": {"f": 8}},
        "q": {"value": "6 W", "source": "override by the user", "basis": "assumed"},
        "new": 1,
    }
    assert repr(document.data) == before


@pytest.mark.parametrize("path", ["x.y", "a.bb.0", "a.b.9", "a.b.-1", "a.b.1.c.d", "a..b"])
def test_an_override_that_leads_nowhere_is_refused(path: str) -> None:
    document = parse_yaml("a: {b: [1, {c: 2}]}\n", "f")
    with pytest.raises(ConfigError) as caught:
        overridden(document, {path: 1})
    assert caught.value.field == path


def leaves(data: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if isinstance(data, dict):
        return [leaf for key, value in data.items() for leaf in leaves(value, (*path, key))]
    if isinstance(data, list):
        return [leaf for i, value in enumerate(data) for leaf in leaves(value, (*path, str(i)))]
    return [path]


KEYS = st.text(string.ascii_lowercase, min_size=1, max_size=5)
TREES = st.recursive(
    st.integers() | st.text(string.ascii_letters, max_size=5),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(KEYS, inner, min_size=1)
    ),
    max_leaves=12,
)


@sample_of(25, 100, data=st.dictionaries(KEYS, TREES, min_size=1), choose=st.data())
def test_an_override_changes_exactly_the_leaf_it_names(data: Any, choose: st.DataObject) -> None:
    path = choose.draw(st.sampled_from(leaves(data)))
    changed = overridden(Document("f", data, {}), {".".join(path): "NEW"}).data

    def get(tree: Any, steps: tuple[str, ...]) -> Any:
        for step in steps:
            tree = tree[int(step) if isinstance(tree, list) else step]
        return tree

    assert get(changed, path) == "NEW"
    for other in leaves(data):
        if other != path:
            assert get(changed, other) == get(data, other)


def test_a_default_document_without_places_still_names_the_field() -> None:
    with pytest.raises(ConfigError, match="spokes"):
        validate(
            Document("f", {"name": "c", "wheels": {"l": {"radius": 1.0, "spokes": 1}}}, {}), Cart
        )


class _Circle(Strict):
    shape: Literal["circle"]
    radius: float


class _Square(Strict):
    shape: Literal["square"]
    side: float


class _Drawing(Strict):
    title: str
    year: int = 0
    shapes: list[Annotated[_Circle | _Square, Field(discriminator="shape")]] = Field(default=[])


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("{shape: squares, side: 1.0}", 3, "shapes.0.shape: unknown shape 'squares'; did you mean"),
        ("{shape: 7}", 3, "unknown shape '7' (allowed: circle, square)"),
        ("{side: 1.0}", 3, "shapes.0: the field 'shape' is missing"),
        ("{shape: square, syde: 1.0}", 3, "unknown field 'syde'; did you mean 'side'"),
    ],
)
def test_of_a_tagged_union_the_nearest_tag_is_named(text: str, line: int, message: str) -> None:
    document = parse_yaml(f"title: a\nshapes:\n  - {text}\n", "f")
    with pytest.raises(ConfigError) as caught:
        validate(document, _Drawing)
    assert message in str(caught.value)
    assert caught.value.line == line
    assert "Input" not in str(caught.value)


def test_further_mistakes_are_named_where_they_are_few() -> None:
    def error(text: str) -> str:
        with pytest.raises(ConfigError) as caught:
            validate(parse_yaml(text, "f"), _Drawing)
        return str(caught.value)

    assert error("title: a\nheads: 1").endswith("title, year)")
    few = error("heads: 1\nb: 2\nyear: x\nshapes: [{shape: circle}]")
    assert few.startswith("f:1:1: heads: unknown field 'heads'")
    assert few.endswith(
        " (and 4 more: unknown 'b', missing 'title', wrong 'year', missing 'shapes.0.radius')"
    )
    many = error("\n".join(f"x{i}: 1" for i in range(7)))
    assert many.endswith(" (and 7 more)")  # six, and the title
