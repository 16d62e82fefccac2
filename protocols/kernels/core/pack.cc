#include "protocols/kernels/core/pack.h"

#include <algorithm>
#include <cstring>

namespace tfe_bench {

void PackRange(const uint64_t* x, int64_t n, int width, uint8_t* out, int64_t begin, int64_t end) {
  end = std::min(end, n);
  if (begin >= end) return;
  uint8_t* to = out + begin * width / 8;
  if (width == 64) {
    std::memcpy(to, x + begin, static_cast<size_t>(end - begin) * 8);
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  uint64_t pending = 0;
  int held = 0;  // fewer than 64
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t value = x[i] & mask;
    pending |= value << held;
    held += width;
    if (held < 64) continue;
    std::memcpy(to, &pending, 8);
    to += 8;
    held -= 64;
    // (of the value's bits, width - held have gone, fewer than 64)
    pending = value >> (width - held);
  }
  std::memcpy(to, &pending, static_cast<size_t>((held + 7) / 8));
}

void UnpackRange(const uint8_t* packed, int64_t n, int width, uint64_t* out, int64_t begin,
                 int64_t end) {
  end = std::min(end, n);
  if (begin >= end) return;
  const uint8_t* from = packed + begin * width / 8;
  if (width == 64) {
    std::memcpy(out + begin, from, static_cast<size_t>(end - begin) * 8);
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const uint8_t* const last = packed + PackedBytes(n, width);
  // A word that starts within a byte has its first 57 bits within eight bytes.
  const int64_t bit = begin * width % 8;
  int64_t i = begin;
  if (width <= 57) {
    for (; i < end; ++i) {
      const int64_t at = bit + (i - begin) * width;
      if (from + at / 8 + 8 > last) break;
      uint64_t word;
      std::memcpy(&word, from + at / 8, 8);
      out[i] = word >> (at % 8) & mask;
    }
  }
  for (; i < end; ++i) {
    const int64_t at = bit + (i - begin) * width;
    unsigned __int128 word = 0;
    const int64_t bytes = (at % 8 + width + 7) / 8;
    std::memcpy(&word, from + at / 8, static_cast<size_t>(bytes));
    out[i] = static_cast<uint64_t>(word >> (at % 8)) & mask;
  }
}

}  // namespace tfe_bench
