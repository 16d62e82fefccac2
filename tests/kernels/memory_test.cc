// Sizes are checked before memory is taken.
#include "protocols/kernels/core/memory.h"

#include <cstdint>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "protocols/kernels/core/conv.h"
#include "tests/kernels/check.h"

using namespace tfe_bench;

namespace {

template <typename Fn>
bool Refused(Fn fn) {
  try {
    fn();
  } catch (const std::bad_alloc&) {
    return true;
  }
  return false;
}

}  // namespace

TEST(a_host_has_some_memory_and_not_all) {
  CHECK(HostMemory() > uint64_t{1} << 20);
  CHECK(AvailableMemory() > 0);
  CHECK(FitsMemory(0));
  CHECK(FitsMemory(1 << 20));
  CHECK(!FitsMemory(uint64_t{1} << 60));
}

TEST(products_that_fit_are_returned_and_others_refused) {
  CHECK_EQ(CheckedWords(3, 5), 15);
  CHECK_EQ(CheckedWords(0, INT64_MAX), 0);
  const int64_t large = int64_t{1} << 31;
  for (const auto& [a, b] : std::vector<std::pair<int64_t, int64_t>>{
           {large, large}, {large << 2, large << 1}, {INT64_MAX, 2}, {1, INT64_MAX}, {-1, 1}}) {
    CHECK(Refused([a = a, b = b] { CheckedWords(a, b); }));
  }
}

// A wide image and a wide kernel, each small: what they send back together is not.
TEST(a_gradient_whose_patches_are_too_many_is_refused_before_they_are_laid_out) {
  ConvShape s = {};
  s.images = s.h = s.out_h = s.kernel_h = s.channels = s.filters = 1;
  s.stride_h = s.stride_w = s.dilation_h = s.dilation_w = 1;
  s.w = int64_t{1} << 40;
  s.kernel_w = 1 << 20;
  s.out_w = s.w - s.kernel_w + 1;
  const std::vector<uint64_t> kernel(s.kernel_w);
  const uint64_t *w = kernel.data(), *d = nullptr;
  CHECK(Refused([&] {
    Conv2DInputGradient(s, 1, &d, &w, nullptr,
                        [](int64_t total, int64_t, const std::function<void(int64_t, int64_t)>& run) {
                          run(0, total);
                        });
  }));
}
