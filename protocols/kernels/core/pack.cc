#include "protocols/kernels/core/pack.h"

#include <algorithm>
#include <cstring>

namespace tfe_bench {

void PackRange(const uint64_t* x, int64_t n, int width, uint8_t* out, int64_t begin, int64_t end) {
  end = std::min(end, n);
  if (begin >= end) return;
  uint8_t* to = out + begin * width / 8;
  if (width == 64) {
    std::memcpy(to, x + begin, 8 * (end - begin));
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t pending = 0;
  int held = 0;
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t v = x[i] & mask;
    pending |= v << held;
    held += width;
    if (held >= 64) {
      std::memcpy(to, &pending, 8);
      to += 8;
      held -= 64;
      pending = v >> (width - held);
    }
  }
  std::memcpy(to, &pending, (held + 7) / 8);
}

void UnpackRange(const uint8_t* packed, int64_t n, int width, uint64_t* out, int64_t begin,
                 int64_t end) {
  end = std::min(end, n);
  if (begin >= end) return;
  const uint8_t* from = packed + begin * width / 8;
  if (width == 64) {
    std::memcpy(out + begin, from, 8 * (end - begin));
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const int64_t bytes = PackedBytes(end - begin, width);
  int64_t bit = 0, i = begin;
  if (width <= 57) {  // one word holds it, whatever bit it starts at
    for (; i < end && bit / 8 + 8 <= bytes; ++i, bit += width) {
      uint64_t word;
      std::memcpy(&word, from + bit / 8, 8);
      out[i] = word >> (bit % 8) & mask;
    }
  } else {
    for (; i < end && bit / 8 + 9 <= bytes; ++i, bit += width) {
      uint64_t word;
      std::memcpy(&word, from + bit / 8, 8);
      const uint64_t more = from[bit / 8 + 8];
      out[i] = (word >> (bit % 8) | more << 1 << (63 - bit % 8)) & mask;
    }
  }
  for (; i < end; ++i, bit += width) {  // where a word would reach beyond the end
    unsigned __int128 word = 0;
    const int64_t first = bit / 8;
    std::memcpy(&word, from + first, std::min<int64_t>(9, bytes - first));
    out[i] = static_cast<uint64_t>(word >> (bit % 8)) & mask;
  }
}

}  // namespace tfe_bench
