// Packed words: what is unpacked is the low bits of what was packed, in any split of the work.
#include "protocols/kernels/core/pack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "protocols/kernels/core/cpu.h"
#include "tests/kernels/check.h"

using namespace tfe_bench;

namespace {

constexpr int64_t kLongest = 5000;  // words
constexpr uint8_t kUntouched = 0xA5;

struct Path {
  const char* name;
  void (*pack)(const uint64_t* x, int64_t n, int width, uint8_t* out);
  void (*unpack)(const uint8_t* packed, int64_t n, int width, uint64_t* out);
};

std::vector<Path> PathsOfThisCpu() {
  const auto pack = [](const uint64_t* x, int64_t n, int width, uint8_t* out) {
    PackRange(x, n, width, out, 0, n);
  };
  const auto unpack = [](const uint8_t* packed, int64_t n, int width, uint64_t* out) {
    UnpackRange(packed, n, width, out, 0, n);
  };
  std::vector<Path> paths = {{"chosen", pack, unpack},
                             {"portable", internal::PackPortable, internal::UnpackPortable}};
  if (Cpu().avx2) paths.push_back({"avx2", internal::PackPortable, internal::UnpackAvx2});
  if (Cpu().avx512) paths.push_back({"avx512", internal::PackAvx512, internal::UnpackAvx512});
  return paths;
}

// Writable pages between two inaccessible ones: an access outside ends the program.
class GuardedPages {
 public:
  GuardedPages() {
    void* pages = mmap(nullptr, kBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin_ = static_cast<uint8_t*>(pages) + kPage;
    mprotect(begin_, kBytes, PROT_READ | PROT_WRITE);
  }
  ~GuardedPages() { munmap(begin_ - kPage, kBytes + 2 * kPage); }

  // A buffer at the front or at the back, `gap` bytes from the guard; all else is kUntouched.
  uint8_t* Place(int64_t bytes, bool at_end, int64_t gap) {
    std::memset(begin_, kUntouched, kBytes);
    placed_ = at_end ? begin_ + kBytes - bytes - gap : begin_ + gap;
    bytes_ = bytes;
    return placed_;
  }
  bool OnlyPlacedWritten() const {
    const auto untouched = [](uint8_t byte) { return byte == kUntouched; };
    return std::all_of(begin_, placed_, untouched) &&
           std::all_of(placed_ + bytes_, begin_ + kBytes, untouched);
  }

 private:
  static constexpr int64_t kPage = 4096;
  static constexpr int64_t kBytes = (8 * (kLongest + 8) / kPage + 1) * kPage;
  uint8_t *begin_, *placed_;
  int64_t bytes_;
};

std::vector<uint8_t> PackBitByBit(const std::vector<uint64_t>& x, int width) {
  std::vector<uint8_t> packed(PackedBytes(static_cast<int64_t>(x.size()), width));
  for (size_t i = 0; i < x.size(); ++i) {
    for (int bit = 0; bit < width; ++bit) {
      const size_t at = i * width + bit;
      packed[at / 8] |= (x[i] >> bit & 1) << (at % 8);
    }
  }
  return packed;
}

// Empty if a path does what is defined, in buffers next to a guard.
std::string Try(const Path& path, const std::vector<uint64_t>& x, int width, bool at_end,
                int64_t gap, GuardedPages* words, GuardedPages* bytes) {
  const auto n = static_cast<int64_t>(x.size());
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  const std::vector<uint8_t> want = PackBitByBit(x, width);
  const auto size = static_cast<int64_t>(want.size());
  const std::string where = std::string(path.name) + ", width " + std::to_string(width) + ", n " +
                            std::to_string(n) + ", gap " + std::to_string(gap);
  auto* in = reinterpret_cast<uint64_t*>(words->Place(8 * n, at_end, 8 * gap));
  std::copy(x.begin(), x.end(), in);
  uint8_t* const packed = bytes->Place(size, at_end, gap);
  path.pack(in, n, width, packed);
  if (!std::equal(want.begin(), want.end(), packed)) return "pack: " + where;
  if (!bytes->OnlyPlacedWritten()) return "pack writes outside: " + where;

  // The bits behind the last word are not read.
  if (n * width % 8 != 0) packed[size - 1] |= 0xFF << (n * width % 8);
  auto* out = reinterpret_cast<uint64_t*>(words->Place(8 * n, at_end, 8 * gap));
  path.unpack(packed, n, width, out);
  for (int64_t i = 0; i < n; ++i) {
    if (out[i] != (x[i] & mask)) return "unpack: " + where;
  }
  return words->OnlyPlacedWritten() ? "" : "unpack writes outside: " + where;
}

std::string TryLength(int64_t n, const std::vector<int64_t>& gaps) {
  std::mt19937_64 random(n);
  GuardedPages words, bytes;
  for (const Path& path : PathsOfThisCpu()) {
    for (int width = 1; width <= (path.name == std::string("chosen") ? 64 : 63); ++width) {
      std::vector<uint64_t> x(n);
      for (auto& v : x) v = random() % 8 ? random() : ~uint64_t{0};
      for (const bool at_end : {true, false}) {
        for (const int64_t gap : gaps) {
          const std::string wrong = Try(path, x, width, at_end, gap, &words, &bytes);
          if (!wrong.empty()) return wrong;
        }
      }
    }
  }
  return "";
}

}  // namespace

TEST(every_path_packs_and_unpacks_alike_within_its_buffers) {
  for (int64_t n = 0; n <= 200; ++n) CHECK_EQ(TryLength(n, {0}), "");
  for (const int64_t n : {511, 512, 513, 777, 1024, 1031, 4096}) CHECK_EQ(TryLength(n, {0}), "");
}

TEST(buffers_begin_at_any_byte) {
  for (const int64_t n : {1, 7, 8, 9, 63, 100, 513, 1031}) {
    CHECK_EQ(TryLength(n, {1, 2, 3, 4, 5, 6, 7, 8}), "");
  }
}

TEST(parts_of_a_range_are_the_bytes_of_the_whole) {
  std::mt19937_64 random(2);
  for (int width = 1; width <= 64; ++width) {
    std::vector<uint64_t> x(kLongest);
    for (auto& v : x) v = random();
    std::vector<uint8_t> packed(PackedBytes(kLongest, width));
    std::vector<uint64_t> y(kLongest);
    for (int64_t begin = 0; begin < kLongest;) {
      const int64_t end = begin + 8 * (1 + static_cast<int64_t>(random() % 80));
      PackRange(x.data(), kLongest, width, packed.data(), begin, end);
      begin = end;
    }
    CHECK(packed == PackBitByBit(x, width));
    for (int64_t begin = 0; begin < kLongest;) {
      const int64_t end = begin + 8 * (1 + static_cast<int64_t>(random() % 80));
      UnpackRange(packed.data(), kLongest, width, y.data(), begin, end);
      begin = end;
    }
    std::vector<uint8_t> again(PackedBytes(kLongest, width));
    PackRange(y.data(), kLongest, width, again.data(), 0, kLongest);
    CHECK(again == packed);
    if (width == 64) CHECK(y == x);
  }
}

TEST(unpacking_gives_back_the_low_bits) {
  std::mt19937_64 random(1);
  for (int width = 1; width <= 64; ++width) {
    for (int64_t n : {0, 1, 7, 8, 9, 100}) {
      std::vector<uint64_t> x(n), y(n);
      for (auto& v : x) v = random();
      std::vector<uint8_t> packed(PackedBytes(n, width), 0xAA);
      for (int64_t begin = 0; begin < n; begin += 8) {
        PackRange(x.data(), n, width, packed.data(), begin, begin + 8);
      }
      UnpackRange(packed.data(), n, width, y.data(), 0, n);
      const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
      for (int64_t i = 0; i < n; ++i) CHECK_EQ(y[i], x[i] & mask);
      std::vector<uint64_t> z(n);
      for (int64_t begin = 0; begin < n; begin += 8) {
        UnpackRange(packed.data(), n, width, z.data(), begin, begin + 8);
      }
      for (int64_t i = 0; i < n; ++i) CHECK_EQ(z[i], y[i]);
    }
  }
}

TEST(size_is_the_bits_in_whole_bytes) {
  CHECK_EQ(PackedBytes(3, 5), 2);
  CHECK_EQ(PackedBytes(8, 16), 16);
  CHECK_EQ(PackedBytes(0, 7), 0);
}
