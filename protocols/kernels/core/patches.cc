#include "protocols/kernels/core/patches.h"

#include <algorithm>
#include <cstring>

namespace tfe_bench {
namespace {

// First index i >= 0 with i * stride + offset >= bound, at most `most`.
int64_t FirstAtLeast(int64_t bound, int64_t stride, int64_t offset, int64_t most) {
  return std::clamp<int64_t>(bound <= offset ? 0 : CeilDiv(bound - offset, stride), 0, most);
}

// Output columns [inside, outside) are those whose `width` columns from column * stride + offset
// on lie in the image.
struct Inner {
  int64_t inside, outside;
  Inner(int64_t w, int64_t width, int64_t stride, int64_t offset, int64_t out_w)
      : inside(FirstAtLeast(0, stride, offset, out_w)),
        outside(std::max(inside, FirstAtLeast(w - width + 1, stride, offset, out_w))) {}
};

// `count` runs of `words` words, from and to equidistant places. kWords != 0 says how many.
template <int64_t kWords>
void CopyRuns(int64_t count, int64_t words, const uint64_t* from, int64_t from_step, uint64_t* to,
              int64_t to_step) {
  const size_t bytes = static_cast<size_t>(kWords == 0 ? words : kWords) * sizeof(uint64_t);
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, bytes);
}

void Copy(int64_t count, int64_t words, const uint64_t* from, int64_t from_step, uint64_t* to,
          int64_t to_step) {
  // The size of a small copy must be known to be cheap.
  switch (words) {
    case 1: return CopyRuns<1>(count, words, from, from_step, to, to_step);
    case 2: return CopyRuns<2>(count, words, from, from_step, to, to_step);
    case 3: return CopyRuns<3>(count, words, from, from_step, to, to_step);
    case 4: return CopyRuns<4>(count, words, from, from_step, to, to_step);
    case 5: return CopyRuns<5>(count, words, from, from_step, to, to_step);
    case 6: return CopyRuns<6>(count, words, from, from_step, to, to_step);
    case 7: return CopyRuns<7>(count, words, from, from_step, to, to_step);
    case 9: return CopyRuns<9>(count, words, from, from_step, to, to_step);
    case 21: return CopyRuns<21>(count, words, from, from_step, to, to_step);
    default: return CopyRuns<0>(count, words, from, from_step, to, to_step);
  }
}

void Zero(int64_t count, int64_t words, uint64_t* to, int64_t to_step) {
  for (int64_t i = 0; i < count; ++i) std::fill_n(to + i * to_step, words, 0);
}

// Columns [first, first + count) of output row `row` of an image: their patches' words that meet
// kernel elements [tap, end_tap), as rows of a matrix with `ld` words each.
void LayOutRow(const ConvShape& s, const uint64_t* image, int64_t row, int64_t first,
               int64_t count, int64_t tap, int64_t end_tap, uint64_t* out, int64_t ld) {
  while (tap < end_tap) {
    const int64_t i = tap / s.kernel_w, j = tap % s.kernel_w;
    // With dilation 1 the elements of a kernel row meet neighbors, which are one run.
    const int64_t together =
        s.dilation_w == 1 ? std::min(s.kernel_w - j, end_tap - tap) : int64_t{1};
    const int64_t words = together * s.channels;
    const int64_t y = row * s.stride_h + i * s.dilation_h - s.pad_top;
    const int64_t offset = j * s.dilation_w - s.pad_left;
    if (y < 0 || y >= s.h) {
      Zero(count, words, out, ld);
    } else {
      const uint64_t* line = image + y * s.w * s.channels;
      const Inner inner(s.w, together, s.stride_w, offset, s.out_w);
      const int64_t inside = std::clamp(inner.inside, first, first + count);
      const int64_t outside = std::clamp(inner.outside, inside, first + count);
      const auto edges = [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; ++column) {
          const int64_t x = column * s.stride_w + offset;
          const int64_t from = std::clamp<int64_t>(-x, 0, together);
          const int64_t to = std::clamp<int64_t>(s.w - x, from, together);
          uint64_t* at = out + (column - first) * ld;
          std::fill_n(at, from * s.channels, 0);
          std::copy_n(line + (x + from) * s.channels, (to - from) * s.channels,
                      at + from * s.channels);
          std::fill_n(at + to * s.channels, (together - to) * s.channels, 0);
        }
      };
      edges(first, inside);
      Copy(outside - inside, words, line + (inside * s.stride_w + offset) * s.channels,
           s.stride_w * s.channels, out + (inside - first) * ld, ld);
      edges(outside, first + count);
    }
    out += words;
    tap += together;
  }
}

}  // namespace

void LayOut(const ConvShape& s, const uint64_t* x, int64_t begin, int64_t end, int64_t tap,
            int64_t end_tap, uint64_t* out) {
  const int64_t ld = (end_tap - tap) * s.channels;
  while (begin < end) {
    const int64_t line = begin / s.out_w, first = begin % s.out_w;
    const int64_t count = std::min(s.out_w - first, end - begin);
    const uint64_t* image = x + line / s.out_h * s.h * s.w * s.channels;
    LayOutRow(s, image, line % s.out_h, first, count, tap, end_tap, out, ld);
    out += count * ld;
    begin += count;
  }
}

}  // namespace tfe_bench
