// Calls the library with arrays of exactly their sizes, so that a sanitizer sees what lies beyond.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "benchmarks/technologies/functional/kernels/comb.h"
#include "benchmarks/technologies/functional/kernels/logarithms.h"
#include "benchmarks/technologies/functional/kernels/products.h"

using namespace tfe_bench::curve;

extern "C" {
void tfe_curve_multiply_base(const uint8_t*, int64_t, uint8_t*);
int64_t tfe_curve_combs(const uint8_t*, int64_t, Comb*);
void tfe_curve_encrypt(const Comb*, int64_t, int64_t, int64_t, const uint8_t*, const int64_t*,
                       int32_t, int64_t, uint8_t*);
int64_t tfe_curve_decode(const uint8_t*, int64_t, Affine*);
void tfe_curve_inner_products(const uint8_t*, const int64_t*, const int32_t*, const int64_t*,
                              int64_t, uint8_t*);
void tfe_curve_evaluate(const Affine*, int64_t, int64_t, const int64_t*, const int32_t*,
                        const int64_t*, const uint8_t*, int64_t, int64_t, int64_t, Point*);
void tfe_curve_encode(const Point*, int64_t, uint8_t*);
}

namespace {

// A whole encryption and decryption of ones and twos: 2 <1, 1> = 2 n.
bool Works(int64_t n, const std::vector<uint64_t>& places, int log2) {
  std::vector<uint8_t> secret(32 * n), elements(32 * (n + 1)), one(32);
  for (int64_t i = 0; i < 32 * n; ++i) secret[i] = static_cast<uint8_t>(7 * i);
  for (int64_t i = 0; i < n; ++i) secret[32 * i + 31] = 0;
  one[0] = 1;
  tfe_curve_multiply_base(one.data(), 1, elements.data());
  tfe_curve_multiply_base(secret.data(), n, elements.data() + 32);
  std::vector<Comb> combs(n + 1);
  if (tfe_curve_combs(elements.data(), n + 1, combs.data()) != -1) return false;
  std::vector<uint8_t> half(32, 255), sent(32 * (n + 1));
  std::vector<int64_t> message(n + 1, 2);
  message[0] = 0;
  tfe_curve_encrypt(combs.data(), 0, n + 1, n + 1, half.data(), message.data(), 1, 1, sent.data());
  std::vector<Affine> points(n + 1);
  if (tfe_curve_decode(sent.data(), n + 1, points.data()) != -1) return false;
  std::vector<int64_t> start = {0, n, n}, value(n, 1);
  std::vector<int32_t> index(n);
  for (int64_t i = 0; i < n; ++i) index[i] = static_cast<int32_t>(i);
  std::vector<uint8_t> keys(64), encoded(64);
  tfe_curve_inner_products(secret.data(), start.data(), index.data(), value.data(), 2, keys.data());
  std::vector<Point> out(2);
  tfe_curve_evaluate(points.data(), 1, n, start.data(), index.data(), value.data(), keys.data(), 2,
                     0, 2, out.data());
  tfe_curve_encode(out.data(), 2, encoded.data());
  std::vector<int64_t> logarithm(2);
  std::vector<uint8_t> found(2);
  FindLogarithms(places.data(), log2, out.data(), 2, 2 * n, logarithm.data(), found.data());
  return found[0] && found[1] && logarithm[0] == 2 * n && logarithm[1] == 0;
}

}  // namespace

int main() {
  const int log2 = kLeastLog2;
  std::vector<uint64_t> places(PlacesFor(log2));
  FillTable(places.data(), log2);
  for (const int64_t n : {1, 2, 63, 64, 1023, 1024}) {
    if (!Works(n, places, log2)) {
      std::printf("length %ld failed\n", static_cast<long>(n));
      return EXIT_FAILURE;
    }
  }
  std::vector<uint64_t> more(PlacesFor(11));
  FillTable(more.data(), 11);
  return Works(100, more, 11) ? EXIT_SUCCESS : EXIT_FAILURE;
}
