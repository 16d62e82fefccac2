#include "protocols/kernels/core/pack.h"

#include <algorithm>
#include <cstring>

namespace tfe_bench {

void PackRange(const uint64_t* x, int64_t n, int width, uint8_t* out, int64_t begin, int64_t end) {
  end = std::min(end, n);
  if (begin >= end) return;
  uint8_t* to = out + begin * width / 8;
  if (width % 8 == 0) {
    const int bytes = width / 8;
    for (int64_t i = begin; i < end; ++i, to += bytes) std::memcpy(to, &x[i], bytes);
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  unsigned __int128 pending = 0;
  int held = 0;
  for (int64_t i = begin; i < end; ++i) {
    pending |= static_cast<unsigned __int128>(x[i] & mask) << held;
    held += width;
    while (held >= 8) {
      *to++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      held -= 8;
    }
  }
  if (held > 0) *to = static_cast<uint8_t>(pending);
}

void UnpackRange(const uint8_t* packed, int64_t n, int width, uint64_t* out, int64_t begin,
                 int64_t end) {
  end = std::min(end, n);
  if (begin >= end) return;
  const uint8_t* from = packed + begin * width / 8;
  if (width % 8 == 0) {
    const int bytes = width / 8;
    for (int64_t i = begin; i < end; ++i, from += bytes) {
      out[i] = 0;
      std::memcpy(&out[i], from, bytes);
    }
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  unsigned __int128 pending = 0;
  int held = 0;
  for (int64_t i = begin; i < end; ++i) {
    while (held < width) {
      pending |= static_cast<unsigned __int128>(*from++) << held;
      held += 8;
    }
    out[i] = static_cast<uint64_t>(pending) & mask;
    pending >>= width;
    held -= width;
  }
}

}  // namespace tfe_bench
