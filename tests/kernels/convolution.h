// Shapes, random words and ways to divide work, for the tests of convolutions.
#ifndef TFE_BENCH_TESTS_KERNELS_CONVOLUTION_H_
#define TFE_BENCH_TESTS_KERNELS_CONVOLUTION_H_

#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "protocols/kernels/core/conv.h"

namespace tfe_bench {

using Range = std::function<void(int64_t, int64_t)>;
using Words = std::vector<uint64_t>;

inline void Serial(int64_t total, int64_t, const Range& run) { run(0, total); }

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

// Out sizes for a padding of `bottom` and `right` beyond the shape's own.
inline void SetOut(ConvShape* s, int64_t bottom, int64_t right) {
  const auto size = [](int64_t in, int64_t kernel, int64_t stride, int64_t dilation) {
    const int64_t room = in - (kernel - 1) * dilation - 1;
    return room < 0 ? int64_t{0} : room / stride + 1;
  };
  s->out_h = size(s->h + s->pad_top + bottom, s->kernel_h, s->stride_h, s->dilation_h);
  s->out_w = size(s->w + s->pad_left + right, s->kernel_w, s->stride_w, s->dilation_w);
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_TESTS_KERNELS_CONVOLUTION_H_
