// Points of edwards25519, -x^2 + y^2 = 1 + d x^2 y^2, in extended coordinates (Hisil, Wong, Carter
// and Dawson, ASIACRYPT 2008).  The formulas are complete: they have no exceptions and no branches.
#ifndef TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_POINT_H_
#define TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_POINT_H_

#include <cstdint>
#include <vector>

#include "benchmarks/technologies/functional/kernels/field.h"

namespace tfe_bench {
namespace curve {

constexpr Point kIdentity = {kZero, kOne, kOne, kZero};
// The base point of RFC 8032 and RFC 9496.
extern const Point kBase;

inline Point Finish(const Field& e, const Field& f, const Field& g, const Field& h) {
  return {Mul(e, f), Mul(g, h), Mul(f, g), Mul(e, h)};
}

inline Point Add(const Point& p, const Affine& q) {
  const Field a = Mul(Sub(p.y, p.x), q.difference), b = Mul(Add(p.y, p.x), q.sum);
  const Field c = Mul(p.t, q.product), d = Add(p.z, p.z);
  return Finish(Sub(b, a), Sub(d, c), Add(d, c), Add(b, a));
}

inline Point Subtract(const Point& p, const Affine& q) {
  const Field a = Mul(Sub(p.y, p.x), q.sum), b = Mul(Add(p.y, p.x), q.difference);
  const Field c = Mul(p.t, q.product), d = Add(p.z, p.z);
  return Finish(Sub(b, a), Add(d, c), Sub(d, c), Add(b, a));
}

inline Point Add(const Point& p, const Point& q) {
  const Field a = Mul(Sub(p.y, p.x), Sub(q.y, q.x)), b = Mul(Add(p.y, p.x), Add(q.y, q.x));
  const Field c = Mul(Mul(p.t, kTwiceD), q.t), d = Mul(Add(p.z, p.z), q.z);
  return Finish(Sub(b, a), Sub(d, c), Add(d, c), Add(b, a));
}

inline Point Double(const Point& p) {
  const Field a = Square(p.x), b = Square(p.y), zz = Square(p.z);
  const Field h = Add(a, b), e = Sub(h, Square(Add(p.x, p.y))), g = Sub(a, b);
  return Finish(e, Add(Add(zz, zz), g), g, h);
}

inline Point Negate(const Point& p) {
  return {Tighten(Negate(p.x)), p.y, p.z, Tighten(Negate(p.t))};
}

inline Affine FromCoordinates(const Field& x, const Field& y) {
  return {Tighten(Add(y, x)), Tighten(Sub(y, x)), Mul(Mul(x, y), kTwiceD), 0};
}

// To affine coordinates with one inversion (Montgomery, 1987); z of no point is zero.
std::vector<Affine> Normalize(const Point* points, int64_t count);

// Replaces count numbers by their inverses, of which one is taken; 0 stays 0.
void InvertAll(Field* values, int64_t count);

// scalar (any 32 bytes, little endian) times p, which are public.
Point MultiplyPublic(const uint8_t scalar[32], const Point& p);

}  // namespace curve
}  // namespace tfe_bench

#endif  // TFE_BENCH_BENCHMARKS_TECHNOLOGIES_FUNCTIONAL_KERNELS_POINT_H_
