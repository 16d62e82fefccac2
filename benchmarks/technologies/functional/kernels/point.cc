#include "benchmarks/technologies/functional/kernels/point.h"

namespace tfe_bench {
namespace curve {
namespace {

constexpr Field kBaseX = {
    {0x62d608f25d51a, 0x412a4b4f6592a, 0x75b7171a4b31d, 0x1ff60527118fe, 0x216936d3cd6e5}};
constexpr Field kBaseY = {
    {0x6666666666658, 0x4cccccccccccc, 0x1999999999999, 0x3333333333333, 0x6666666666666}};

}  // namespace

const Point kBase = {kBaseX, kBaseY, kOne, Mul(kBaseX, kBaseY)};

void InvertAll(Field* values, int64_t count) {
  std::vector<Field> before(static_cast<size_t>(count));
  Field product = kOne;
  for (int64_t i = 0; i < count; ++i) {
    before[i] = product;
    Assign(product, Mul(product, values[i]), Mask(1 ^ IsZero(values[i])));
  }
  product = Invert(product);
  for (int64_t i = count - 1; i >= 0; --i) {
    const uint64_t some = Mask(1 ^ IsZero(values[i]));
    const Field next = Mul(product, values[i]);
    Assign(values[i], Mul(product, before[i]), some);
    Assign(product, next, some);
  }
}

std::vector<Affine> Normalize(const Point* points, int64_t count) {
  std::vector<Field> inverse(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) inverse[i] = points[i].z;
  InvertAll(inverse.data(), count);
  std::vector<Affine> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    out[i] = FromCoordinates(Mul(points[i].x, inverse[i]), Mul(points[i].y, inverse[i]));
  }
  return out;
}

Point MultiplyPublic(const uint8_t scalar[32], const Point& p) {
  Point multiple[16] = {kIdentity, p};
  for (int i = 2; i < 16; ++i) multiple[i] = Add(multiple[i - 1], p);
  Point out = kIdentity;
  for (int i = 31; i >= 0; --i) {
    for (const int digit : {scalar[i] >> 4, scalar[i] & 15}) {
      for (int j = 0; j < 4; ++j) out = Double(out);
      out = Add(out, multiple[digit]);
    }
  }
  return out;
}

}  // namespace curve
}  // namespace tfe_bench
