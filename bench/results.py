"""The published results: one record per figure, kept as JSON, so that each can be measured alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare import Curve
from measure import Spread, Stats
from table import Row, Versus

PATH = Path(__file__).resolve().parent / "results.json"


@dataclass(frozen=True)
class Result:
    """What one figure gave when it was measured last."""

    date: str
    load: list[float]  # average of a minute, before and after
    rows: list[Row]
    curves: list[Curve] = field(default_factory=list)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Result:
        rows, curves = map(_row, stored["rows"]), map(_curve, stored["curves"])
        return cls(stored["date"], stored["load"], list(rows), list(curves))


@dataclass
class Results:
    machine: str = ""
    versions: str = ""
    sizes: str = ""
    figures: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path = PATH) -> Results:
        if not path.exists():
            return cls()
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["figures"] = {name: Result.of(result) for name, result in stored["figures"].items()}
        return cls(**stored)

    def save(self, names: Iterable[str], path: Path = PATH) -> None:
        """Write the results of these figures, in this order; a figure that no longer exists is dropped."""
        self.figures = {name: self.figures[name] for name in names if name in self.figures}
        stored = _rounded(asdict(self))
        figures = ",\n".join(
            f"{_json(name)}: {_json(result)}" for name, result in stored.pop("figures").items()
        )
        path.write_text(f'{_json(stored)[:-1]}, "figures": {{\n{figures}\n}}}}\n', encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _row(stored: dict[str, Any]) -> Row:
    versus = stored.pop("versus")
    return Row(**stored, versus=versus and Versus(**versus))


def _curve(stored: dict[str, Any]) -> Curve:
    lanes = {name: [Stats(**stats) for stats in lane] for name, lane in stored.pop("lanes").items()}
    return Curve(**{**stored, "ratios": [Spread(**ratio) for ratio in stored["ratios"]]}, lanes=lanes)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
