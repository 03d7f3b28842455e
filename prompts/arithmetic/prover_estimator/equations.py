"""Check equations of whole numbers."""

import ast
import operator

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def check(text: str, columns: dict[str, object]) -> bool:  # noqa: ARG001 - every checker gets the columns
    """Return whether a text is an equation with the signs + - * = and parentheses, and both sides are equal."""
    left, sign, right = text.strip().rstrip(".").replace("×", "*").replace("−", "-").partition("=")
    try:
        return bool(sign) and _value(left) == _value(right)
    except (SyntaxError, ValueError):
        return False


def _value(side: str) -> int:
    if len(side) > 200:
        raise ValueError("too long")
    return _evaluate(ast.parse(side.strip(), mode="eval").body)


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not an equation of whole numbers")
