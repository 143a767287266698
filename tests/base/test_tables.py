"""The first mistake in a table, as one line."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from confide.base.errors import InputError
from confide.base.tables import Table, checked


class Cat(Table):
    name: Literal["cat"]
    lives: int = Field(description="seven or nine")


class Dog(Table):
    name: Literal["dog"]
    tricks: list[str] = Field([])


class House(Table):
    secret: int = Field(0, exclude=True)
    rooms: int | list[int] = 3
    pet: Annotated[Cat | Dog, Field(discriminator="name")] = Dog(name="dog")
    garden: dict[str, Dog] = Field({})
    cellar: Dog | None = None


def test_a_table_without_a_mistake() -> None:
    house = checked(House, {"rooms": [1, 2], "pet": {"name": "cat", "lives": 9}})
    assert house == House(rooms=[1, 2], pet=Cat(name="cat", lives=9))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"room": 1}, "room = 1: unknown key; did you mean 'rooms'? known here: rooms, pet, garden, cellar"),
        ({"rooms": 1.5}, "rooms = 1.5: input should be a valid integer; or input should be a valid list"),
        ({"rooms": [1, "x"]}, "rooms = [1, 'x']: input should be a valid integer"),
        ({"pet": {"name": "cat"}}, "pet.lives = None: is missing: seven or nine"),
        ({"pet": {"name": "cat", "live": 1, "lives": 1}}, "pet.live = 1: unknown key; did you mean 'pet.lives'?"),
        ({"pet": {"name": "dog", "tricks": ["sit", 2]}}, "pet.tricks.1 = 2: input should be a valid string"),
        ({"pet": 3}, "pet = 3: must be a table, written [pet]"),
        ({"garden": {"east": {}}}, "garden.east.name = None: is missing: it has no default"),
        ({"garden": {"east": {"name": "dog", "trick": 1}}}, "garden.east.trick = 1: unknown key; did you mean"),
        ({"cellar": {"name": "dog", "tricks": 5}}, "cellar.tricks = 5: input should be a valid list"),
        ({"cellar": 1, "rooms": "x"}, "rooms = 'x': input should be a valid integer; or input should be a valid list"),
    ],
)
def test_the_first_mistake_names_the_key_and_what_would_be_right(content: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        checked(House, content)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)
