// Random words and ways to divide work, for the tests of products and convolutions.
#ifndef TFE_BENCH_TESTS_KERNELS_WAYS_H_
#define TFE_BENCH_TESTS_KERNELS_WAYS_H_

#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "protocols/kernels/core/parallel.h"

using Range = std::function<void(int64_t, int64_t)>;
using Words = std::vector<uint64_t>;

inline void TwoThreads(int64_t total, int64_t, const Range& run) {
  std::thread other([&] { run(total / 2, total); });
  run(0, total / 2);
  other.join();
}

// One unit at a time, backwards: the order of the units must not matter.
inline void Backwards(int64_t total, int64_t, const Range& run) {
  for (int64_t unit = total; unit-- > 0;) run(unit, unit + 1);
}

inline Words RandomWords(std::mt19937_64* random, int64_t size) {
  Words words(static_cast<size_t>(size));
  for (uint64_t& w : words) w = (*random)();
  return words;
}

#endif  // TFE_BENCH_TESTS_KERNELS_WAYS_H_
