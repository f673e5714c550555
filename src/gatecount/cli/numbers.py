"""Numbers within a range, as options take them."""

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A number within a range. FloatRange lets nan pass: it is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert an option's text, or fail as a usage error."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail("nan is not a number.", param, ctx)
        return number
