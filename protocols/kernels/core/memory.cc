#include "protocols/kernels/core/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <new>

namespace tfe_bench {
namespace {

// What is less is taken without a look: it costs some microseconds.
constexpr uint64_t kMuch = uint64_t{64} << 20;

// The first number of a file that fits a pattern of scanf; UINT64_MAX without one ("max").
uint64_t NumberIn(const char* path, const char* pattern) {
  std::FILE* file = std::fopen(path, "r");
  if (!file) return UINT64_MAX;
  uint64_t number = UINT64_MAX;
  char line[256];
  while (std::fgets(line, sizeof(line), file)) {
    unsigned long long found;
    if (std::sscanf(line, pattern, &found) == 1) {
      number = found;
      break;
    }
  }
  std::fclose(file);
  return number;
}

// A container sees its own control group at these places, of version 2 or 1.
struct Group {
  const char *limit, *used, *stat, *cache;
};
constexpr Group kGroups[] = {
    {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
     "inactive_file %llu"},
    {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
     "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file %llu"},
};

}  // namespace

uint64_t HostMemory() {
  static const uint64_t bytes = [] {
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t least = pages > 0 && page > 0 ? static_cast<uint64_t>(pages * page) : UINT64_MAX;
    for (const Group& group : kGroups) least = std::min(least, NumberIn(group.limit, "%llu"));
    return least;
  }();
  return bytes;
}

uint64_t AvailableMemory() {
  const uint64_t kib = NumberIn("/proc/meminfo", "MemAvailable: %llu kB");
  uint64_t least = kib == UINT64_MAX ? kib : kib * 1024;
  for (const Group& group : kGroups) {
    const uint64_t limit = NumberIn(group.limit, "%llu"), used = NumberIn(group.used, "%llu");
    if (limit == UINT64_MAX || used == UINT64_MAX) continue;
    // What its page cache holds can be given back.
    const uint64_t cache = NumberIn(group.stat, group.cache);
    const uint64_t kept = used - (cache == UINT64_MAX ? 0 : std::min(used, cache));
    least = std::min(least, limit - std::min(limit, kept));
  }
  return least;
}

bool FitsMemory(uint64_t bytes) { return bytes < kMuch || bytes <= AvailableMemory(); }

int64_t CheckedWords(int64_t a, int64_t b) {
  int64_t words, bytes;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &words) ||
      __builtin_mul_overflow(words, int64_t{8}, &bytes) ||
      !FitsMemory(static_cast<uint64_t>(bytes))) {
    throw std::bad_alloc();
  }
  return words;
}

}  // namespace tfe_bench
