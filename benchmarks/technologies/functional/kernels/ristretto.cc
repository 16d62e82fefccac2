#include "benchmarks/technologies/functional/kernels/ristretto.h"

#include <vector>

namespace tfe_bench {
namespace curve {

// RFC 9496, section 4.3.1.
bool Decode(const uint8_t in[32], Field* x, Field* y) {
  if (!IsCanonical(in) || (in[0] & 1)) return false;
  const Field s = FromBytes(in), ss = Square(s);
  const Field u1 = Sub(kOne, ss), u2 = Add(kOne, ss), u2_squared = Square(u2);
  const Field v = Sub(Negate(Mul(kD, Square(u1))), u2_squared);
  Field root;
  const uint64_t was_square = InverseSquareRoot(Mul(v, u2_squared), &root);
  const Field den_x = Mul(root, u2), den_y = Mul(Mul(root, den_x), v);
  Field found = Mul(Add(s, s), den_x);
  NegateIf(found, Mask(IsNegative(found)));
  *x = Tighten(found);
  *y = Mul(u1, den_y);
  return was_square && !IsNegative(Mul(*x, *y)) && !IsZero(*y);
}

// RFC 9496, section 4.3.2.
void Encode(const Point& p, uint8_t out[32]) {
  const Field u1 = Mul(Add(p.z, p.y), Sub(p.z, p.y)), u2 = Mul(p.x, p.y);
  Field root;
  InverseSquareRoot(Mul(u1, Square(u2)), &root);
  const Field den1 = Mul(root, u1), den2 = Mul(root, u2);
  const Field inverse_z = Mul(Mul(den1, den2), p.t);
  const uint64_t rotate = Mask(IsNegative(Mul(p.t, inverse_z)));
  Field x = p.x, y = p.y, den = den2;
  Assign(x, Mul(p.y, kRootOfMinusOne), rotate);
  Assign(y, Mul(p.x, kRootOfMinusOne), rotate);
  Assign(den, Mul(den1, kInverseRoot), rotate);
  NegateIf(y, Mask(IsNegative(Mul(x, inverse_z))));
  Field s = Mul(den, Sub(p.z, Tighten(y)));
  NegateIf(s, Mask(IsNegative(s)));
  ToBytes(s, out);
}

void EncodeDoubles(const Point* points, int64_t count, uint8_t* const* out) {
  // Twice a point is (e f : g h : f g : e h), so what Encode needs has known roots and
  // denominators: only 1 / (e f g h) is left.
  struct Halves {
    Field e, f, g, h, eg, fh;
  };
  std::vector<Halves> halves(static_cast<size_t>(count));
  std::vector<Field> inverse(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const Point& p = points[i];
    const Field zz = Square(p.z), dtt = Mul(Square(p.t), kD);
    Halves& at = halves[i];
    at.e = Mul(p.x, Add(p.y, p.y));
    at.f = Add(zz, dtt);
    at.g = Add(Square(p.y), Square(p.x));
    at.h = Tighten(Sub(zz, dtt));
    at.eg = Mul(at.e, at.g);
    at.fh = Mul(at.f, at.h);
    inverse[i] = Mul(at.eg, at.fh);
  }
  InvertAll(inverse.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const Halves& at = halves[i];
    const Field inverse_z = Mul(at.eg, inverse[i]), inverse_t = Mul(at.fh, inverse[i]);
    const uint64_t rotate = Mask(IsNegative(Mul(at.eg, inverse_z)));
    Field e = at.e, g = Tighten(at.g), h = at.h, factor = kInverseRoot;
    Assign(e, g, rotate);
    Assign(g, Tighten(Negate(at.e)), rotate);
    Assign(h, Mul(at.f, kRootOfMinusOne), rotate);
    Assign(factor, kRootOfMinusOne, rotate);
    Field side = g;
    NegateIf(side, Mask(IsNegative(Mul(Mul(h, e), inverse_z))));
    side = Tighten(side);
    Field s = Mul(Sub(h, side), Mul(Mul(factor, side), inverse_t));
    NegateIf(s, Mask(IsNegative(s)));
    ToBytes(s, out[i]);
  }
}

}  // namespace curve
}  // namespace tfe_bench
