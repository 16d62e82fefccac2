"""ristretto255 in plain Python, from RFC 9496 and the curve's equation, for comparison.

It is slow, and independent of the kernel. It implements a class of `pymife`, so
that the schemes of `pymife` run in this group.
"""

from __future__ import annotations

from typing import Any

from mife.data.group import GroupBase, GroupElem

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
I = pow(2, (P - 1) // 4, P)  # noqa: E741
Y = 4 * pow(5, -1, P) % P


def square_root(ratio: int) -> int | None:
    """Return the even square root modulo P, or None."""
    result = pow(ratio, (P + 3) // 8, P)
    if (result * result - ratio) % P:
        result = result * I % P
    if (result * result - ratio) % P:
        return None
    return min(result, P - result, key=lambda r: r & 1)


def even_root(value: int) -> int:
    value %= P
    return P - value if value & 1 else value


class Element(GroupElem):  # type: ignore[misc]
    """A point of edwards25519 as a representative of its class."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x % P, y % P

    def __add__(self, other: Any) -> Element:
        t = D * self.x * other.x * self.y * other.y
        x = (self.x * other.y + self.y * other.x) * pow(1 + t, -1, P)
        return Element(x, (self.y * other.y + self.x * other.x) * pow(1 - t, -1, P))

    def __neg__(self) -> Element:
        return Element(-self.x, self.y)

    def __rmul__(self, times: int) -> Element:
        out, power, times = Element(0, 1), self, times % (8 * L)
        while times:
            if times & 1:
                out = out + power
            power, times = power + power, times >> 1
        return out

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and self.encoded() == other.encoded()

    def __hash__(self) -> int:
        return hash(self.encoded())

    def __str__(self) -> str:
        return self.encoded().hex()

    def export(self) -> dict[str, str]:
        return {"encoded": str(self)}

    def encoded(self) -> bytes:
        """Encode it by RFC 9496, section 4.3.2, with z = 1."""
        x, y, t = self.x, self.y, self.x * self.y % P
        u1, u2 = (1 + y) * (1 - y) % P, t
        square = u1 * u2 * u2 % P
        inverse = square_root(pow(square, -1, P) if square else 0)
        if inverse is None:
            inverse = square_root(I * pow(square, -1, P) % P)
        assert inverse is not None
        den1, den2 = inverse * u1 % P, inverse * u2 % P
        z = den1 * den2 * t % P
        if t * z % P & 1:
            other = square_root(pow(-1 - D, -1, P))
            assert other is not None
            x, y, den2 = y * I % P, x * I % P, den1 * other % P
        if x * z % P & 1:
            y = -y
        return even_root(den2 * (1 - y)).to_bytes(32, "little")


def decode_element(data: bytes) -> Element:
    """Decode valid encodings by RFC 9496, section 4.3.1."""
    s = int.from_bytes(data, "little")
    u1, u2 = 1 - s * s, 1 + s * s
    v = (-D * u1 * u1 - u2 * u2) % P
    inverse = square_root(pow(v * u2 * u2, -1, P))
    assert inverse is not None
    den_x = inverse * u2
    return Element(even_root(2 * s * den_x), u1 * inverse * den_x * v)


BASE = Element(square_root((Y * Y - 1) * pow(D * Y * Y + 1, -1, P)) or 0, Y)


class Group(GroupBase):  # type: ignore[misc]
    """The group, with the interface of pymife."""

    def __call__(self, elem: Any) -> Element:
        return decode_element(elem)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group)

    def __hash__(self) -> int:
        return 0

    def __str__(self) -> str:
        return "ristretto255"

    def generator(self) -> Element:
        return BASE

    def order(self) -> int:
        return L

    def identity(self) -> Element:
        return Element(0, 1)

    def export(self) -> dict[str, str]:
        return {"type": str(self)}


def multiply_point(k: int, point: Element = BASE) -> Element:
    """Return a multiple of a point."""
    return point.__rmul__(k)
