"""How figures are written: never rounded into a claim that they do not support."""

NOT_REPORTED = "-"


def format_count(value: int | None) -> str:
    """Return a count with thousands separated; ``-`` when it was not reported."""
    return NOT_REPORTED if value is None else f"{value:,}"


def format_percent(rate: float | None) -> str:
    """Return a rate from 0 to 1 in per cent.

    Only a rate of exactly 1 is shown as 100.0 %, and only one of exactly 0 as 0.0 %.
    """
    if rate is None:
        return NOT_REPORTED
    if 0 < rate < 1:
        return f"{min(max(rate * 100, 0.1), 99.9):.1f} %"
    return f"{rate * 100:.1f} %"


def format_decimal(value: float | None, decimals: int = 2) -> str:
    """Return a number with a fixed number of decimals; ``-`` when it was not reported."""
    return NOT_REPORTED if value is None else f"{value:,.{decimals}f}"


def format_figure(value: float | None) -> str:
    """Return a measured figure with about three digits; ``-`` when it was not reported."""
    if value is None:
        return NOT_REPORTED
    size = abs(value)
    return format_decimal(value, 2 if size < 10 else 1 if size < 100 else 0)


def format_speedup(ratio: float | None) -> str:
    """Return a ratio as ``1.83x``; ``-`` when there is none. A ratio that is not 1 is not shown as 1.00."""
    if ratio is None:
        return NOT_REPORTED
    text = f"{ratio:.2f}"
    return f"{ratio:.4f}x" if text == "1.00" and ratio != 1 else f"{text}x"
