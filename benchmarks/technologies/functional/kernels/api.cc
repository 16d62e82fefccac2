// What Python calls (benchmarks/technologies/functional/curve.py, which checks all arguments).
//
// Arrays are contiguous and belong to the caller; nothing is kept between calls but constant tables.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "benchmarks/technologies/functional/kernels/comb.h"
#include "benchmarks/technologies/functional/kernels/logarithms.h"
#include "benchmarks/technologies/functional/kernels/products.h"
#include "benchmarks/technologies/functional/kernels/ristretto.h"
#include "benchmarks/technologies/functional/kernels/scalar.h"

using namespace tfe_bench::curve;

#define TFE_BENCH_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// Points that share one inversion when they are encoded.
constexpr int64_t kEncoded = 64;

void WriteScalar(const Scalar& s, uint8_t* out) { std::memcpy(out, s.word, 32); }

}  // namespace

TFE_BENCH_EXPORT const char* tfe_curve_version() { return "tfe_bench curve 1"; }
TFE_BENCH_EXPORT int64_t tfe_curve_comb_bytes() { return sizeof(Comb); }
TFE_BENCH_EXPORT int64_t tfe_curve_affine_bytes() { return sizeof(Affine); }
TFE_BENCH_EXPORT int64_t tfe_curve_point_bytes() { return sizeof(Point); }
#ifdef TFE_BENCH_COUNT_PRODUCTS
TFE_BENCH_EXPORT uint64_t tfe_curve_products() { return CountOfProducts(); }
#endif

// out[i] = wide[i] (64 bytes each) modulo l.
TFE_BENCH_EXPORT void tfe_curve_reduce(const uint8_t* wide, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    uint64_t words[8];
    std::memcpy(words, wide + 64 * i, 64);
    WriteScalar(Reduce(words), out + 32 * i);
  }
}

// out[i] = a[i] b[i] + c[i] modulo l, of any 32 bytes each.
TFE_BENCH_EXPORT void tfe_curve_muladd(const uint8_t* a, const uint8_t* b, const uint8_t* c,
                                       int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < 32 * count; i += 32) {
    WriteScalar(MulAdd(ScalarFrom(a + i), ScalarFrom(b + i), ScalarFrom(c + i)), out + i);
  }
}

// Whether all of them are below l.
TFE_BENCH_EXPORT int32_t tfe_curve_reduced(const uint8_t* scalars, int64_t count) {
  int32_t all = 1;
  for (int64_t i = 0; i < count; ++i) all &= IsReduced(scalars + 32 * i);
  return all;
}

// out[row] = inner product of s (32 bytes below l each) with a row of numbers.
TFE_BENCH_EXPORT void tfe_curve_inner_products(const uint8_t* s, const int64_t* start,
                                               const int32_t* index, const int64_t* value,
                                               int64_t rows, uint8_t* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = start[row];
    WriteScalar(InnerProduct(s, index + at, value + at, start[row + 1] - at), out + 32 * row);
  }
}

// combs[i] of encoded[i]; the first that encodes no element, or -1.
TFE_BENCH_EXPORT int64_t tfe_curve_combs(const uint8_t* encoded, int64_t count, Comb* combs) {
  for (int64_t i = 0; i < count; ++i) {
    Field x, y;
    if (!Decode(encoded + 32 * i, &x, &y)) return i;
    combs[i] = MakeComb({x, y, kOne, Mul(x, y)});
  }
  return -1;
}

// out[i] = encoding of k[i] times the base point.
TFE_BENCH_EXPORT void tfe_curve_multiply_base(const uint8_t* k, int64_t count, uint8_t* out) {
  for (int64_t first = 0; first < count; first += kEncoded) {
    Point points[kEncoded];
    uint8_t* to[kEncoded];
    int64_t n = 0;
    for (; n < kEncoded && first + n < count; ++n) {
      points[n] = Multiply(HalfBaseComb(), DigitsOf(ScalarFrom(k + 32 * (first + n))));
      to[n] = out + 32 * (first + n);
    }
    EncodeDoubles(points, n, to);
  }
}

// For elements begin to end of each of `batch` messages of `count`:
// out[b, i] = encoding of 2 half_k[b] combs[i] + m[b, i] times the base point, |m| < 2^(4 windows-1).
// Each comb serves the whole batch while it is in the caches.
TFE_BENCH_EXPORT void tfe_curve_encrypt(const Comb* combs, int64_t begin, int64_t end,
                                        int64_t count, const uint8_t* half_k, const int64_t* m,
                                        int32_t windows, int64_t batch, uint8_t* out) {
  std::vector<Digits> digits;
  for (int64_t b = 0; b < batch; ++b) digits.push_back(DigitsOf(ScalarFrom(half_k + 32 * b)));
  Point points[kEncoded];
  uint8_t* to[kEncoded];
  int64_t n = 0;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t b = 0; b < batch; ++b) {
      points[n] = AddSmall(Multiply(combs[i], digits[b]), m[b * count + i], windows);
      to[n] = out + 32 * (b * count + i);
      if (++n == kEncoded) EncodeDoubles(points, n, to), n = 0;
    }
  }
  EncodeDoubles(points, n, to);
  std::memset(digits.data(), 0, digits.size() * sizeof(Digits));
}

// Checks and unpacks encodings; the first that encodes no element, or -1.
TFE_BENCH_EXPORT int64_t tfe_curve_decode(const uint8_t* encoded, int64_t count, Affine* out) {
  for (int64_t i = 0; i < count; ++i) {
    Field x, y;
    if (!Decode(encoded + 32 * i, &x, &y)) return i;
    out[i] = FromCoordinates(x, y);
  }
  return -1;
}

// out[row] = (sum over the row of value points[heads + index]) - sum of keys[h, row] points[h].
TFE_BENCH_EXPORT void tfe_curve_evaluate(const Affine* points, int64_t heads, int64_t count,
                                         const int64_t* start, const int32_t* index,
                                         const int64_t* value, const uint8_t* keys, int64_t rows,
                                         int64_t begin, int64_t end, Point* out) {
  std::vector<WindowTable> tables;
  const int width = WindowTable::BestWidth(end - begin);
  for (int64_t h = 0; h < heads; ++h) tables.emplace_back(Add(kIdentity, points[h]), width);
  Products products(points + heads, count, {start, index, value}, begin, end);
  for (int64_t row = begin; row < end; ++row) {
    Point sum = products.Row(row);
    for (int64_t h = 0; h < heads; ++h) {
      sum = tables[h].SubtractMultiple(sum, keys + 32 * (h * rows + row));
    }
    out[row] = sum;
  }
}

TFE_BENCH_EXPORT void tfe_curve_encode(const Point* points, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i) Encode(points[i], out + 32 * i);
}

// The encoding of RFC 8032 of k times the base point, for its test vectors.
TFE_BENCH_EXPORT void tfe_curve_edwards(const uint8_t* k, uint8_t* out) {
  const Point p = Double(Multiply(HalfBaseComb(), DigitsOf(ScalarFrom(k))));
  const Field inverse = Invert(p.z);
  ToBytes(Mul(p.y, inverse), out);
  out[31] |= static_cast<uint8_t>(IsNegative(Mul(p.x, inverse)) << 7);
}

TFE_BENCH_EXPORT int64_t tfe_curve_places(int32_t log2) { return PlacesFor(log2); }

TFE_BENCH_EXPORT void tfe_curve_fill_table(uint64_t* places, int32_t log2) {
  FillTable(places, log2);
}

TFE_BENCH_EXPORT void tfe_curve_find(const uint64_t* places, int32_t log2, const Point* points,
                                     int64_t count, int64_t bound, int64_t* logarithm,
                                     uint8_t* found) {
  FindLogarithms(places, log2, points, count, bound, logarithm, found);
}

TFE_BENCH_EXPORT int32_t tfe_curve_walk(const Point* point, int64_t bound, int64_t* logarithm) {
  return WalkToLogarithm(*point, bound, logarithm);
}
