"""Results as people read them. The package itself is `rl.report`: calling it makes a report."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ridgeline import views


class _CallablePackage(ModuleType):
    """Type of this package, since a package and a function cannot share a name."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Make a report: see `ridgeline.html_report.report`."""
        return views.view("html_report")(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
