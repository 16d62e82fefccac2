// Masks and secret permutations from the pairwise keys.
#include <algorithm>
#include <cstring>
#include <vector>

#include "protocols/kernels/core/permutation.h"
#include "protocols/kernels/ops/register.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr int64_t kBlocksPerShard = 512;  // 8 KiB: fits the first-level cache

class MaskOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    TensorShape shape;
    OP_REQUIRES_OK(context, ShapeFrom(context->input(1), &shape));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, shape, &out));
    const int64_t n = shape.num_elements();
    if (n == 0) return;
    PrfStream stream;
    OP_REQUIRES_OK(context, Stream(call, n, &stream));
    uint64_t* words = Words(out);
    ParallelRange(context, n / 2, 4, [&](int64_t begin, int64_t end) {
      FillMask(*call.session, stream, begin, end - begin,
               reinterpret_cast<uint8_t*>(words + 2 * begin));
    });
    if (n % 2) {
      uint64_t block[2];
      FillMask(*call.session, stream, n / 2, 1, reinterpret_cast<uint8_t*>(block));
      words[n - 1] = block[0];
    }
    call.session->Record(stream, kShare, words, n * 8);
  }
};

class ApplyMaskOp : public SiteOp {
 public:
  explicit ApplyMaskOp(OpKernelConstruction* c) : SiteOp(c) {
    std::string op;
    OP_REQUIRES_OK(c, c->GetAttr("op", &op));
    op_ = op[0];  // 'a'dd, 's'ub, 'x'or
    wide_ = op.size() > 3;
    OP_REQUIRES_OK(c, c->GetAttr("sent", &sent_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Tensor& x = context->input(1);
    Tensor* y;
    OP_REQUIRES_OK(context, Allocate(context, 0, x.shape(), &y));
    const int64_t n = x.NumElements();
    if (n == 0) return;
    OP_REQUIRES(context, !wide_ || (x.dims() > 0 && x.dim_size(x.dims() - 1) == 2),
                absl::InvalidArgumentError("128-bit elements want a last axis of 2 words"));
    PrfStream stream;
    OP_REQUIRES_OK(context, Stream(call, n, &stream));
    const uint64_t* in = Words(x);
    uint64_t* out = Words(y);
    const int64_t blocks = (n + 1) / 2;
    const int64_t shards = (blocks + kBlocksPerShard - 1) / kBlocksPerShard;
    ParallelRange(context, shards, 6 * kBlocksPerShard, [&](int64_t begin, int64_t end) {
      alignas(64) uint64_t mask[2 * kBlocksPerShard];
      for (int64_t s = begin; s < end; ++s) {
        const int64_t first = s * kBlocksPerShard;
        const int64_t count = std::min(kBlocksPerShard, blocks - first);
        FillMask(*call.session, stream, first, count, reinterpret_cast<uint8_t*>(mask));
        const int64_t words = std::min(2 * count, n - 2 * first);
        const uint64_t* a = in + 2 * first;
        uint64_t* b = out + 2 * first;
        if (wide_) {  // a block is one 128-bit element
          for (int64_t i = 0; i < words; i += 2) {
            unsigned __int128 v, k;
            std::memcpy(&v, a + i, 16);
            std::memcpy(&k, mask + i, 16);
            v = op_ == 'a' ? v + k : v - k;
            std::memcpy(b + i, &v, 16);
          }
        } else if (op_ == 'a') {
          for (int64_t i = 0; i < words; ++i) b[i] = a[i] + mask[i];
        } else if (op_ == 's') {
          for (int64_t i = 0; i < words; ++i) b[i] = a[i] - mask[i];
        } else {
          for (int64_t i = 0; i < words; ++i) b[i] = a[i] ^ mask[i];
        }
      }
    });
    call.session->Record(stream, sent_ ? kMasked : kShare, out, n * 8);
  }

 private:
  char op_;
  bool wide_;
  bool sent_;  // the result leaves this party; else it is one of its shares
};

class PermutationOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    TensorShape shape;
    OP_REQUIRES_OK(context, ShapeFrom(context->input(1), &shape));
    OP_REQUIRES(context, shape.dims() == 2 && shape.dim_size(1) <= INT32_MAX,
                absl::InvalidArgumentError("a permutation has the shape [rows, n], n < 2^31"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, shape, &out));
    const int64_t rows = shape.dim_size(0), n = shape.dim_size(1);
    if (rows * n == 0) return;
    // Rejection sampling draws a random number of words: each row owns four times what it expects,
    // which it exceeds with a probability far below 2^-128.
    const int64_t blocks_per_row = n + 64;
    PrfStream stream;
    OP_REQUIRES_OK(context, Stream(call, rows * blocks_per_row * 2, &stream));
    int32_t* to = out->flat<int32_t>().data();
    ParallelRange(context, rows, 20 * n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (call.session->fault() == kBiasedPermutation) {
          for (int64_t i = 0; i < n; ++i) to[r * n + i] = static_cast<int32_t>(i);
          continue;
        }
        RandomPermutation(*stream.key, stream.hi, stream.lo + r * blocks_per_row, n, to + r * n);
        if (call.session->Altered(stream)) std::reverse(to + r * n, to + (r + 1) * n);
      }
    });
    call.session->Record(stream, kShare, to, rows * n * 4);
  }
};

class PermuteOp : public Kernel {
 public:
  explicit PermuteOp(OpKernelConstruction* c) : Kernel(c) {}

  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& p = context->input(1);
    OP_REQUIRES(context,
                x.dims() == 3 && p.dims() == 2 && x.dim_size(0) == p.dim_size(0),
                absl::InvalidArgumentError("Permute wants x [rows, n, words] and permutation [rows, m]"));
    const int64_t rows = p.dim_size(0), n = x.dim_size(1), m = p.dim_size(1);
    const int64_t row_bytes = x.dim_size(2) * 8;
    const int32_t* permutation = p.flat<int32_t>().data();
    for (int64_t i = 0; i < rows * m; ++i) {
      OP_REQUIRES(context, permutation[i] >= 0 && permutation[i] < n,
                  absl::InvalidArgumentError("Permute: index out of range"));
    }
    Tensor* y;
    OP_REQUIRES_OK(context,
                   Allocate(context, 0, {rows, m, x.dim_size(2)}, &y));
    if (y->NumElements() == 0) return;
    const char* in = reinterpret_cast<const char*>(Words(x));
    char* out = reinterpret_cast<char*>(Words(y));
    constexpr int64_t kRows = 4096;
    const int64_t parts = (m + kRows - 1) / kRows;
    ParallelRange(context, rows * parts, kRows * 10, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        const int64_t r = s / parts, first = s % parts * kRows;
        ApplyPermutation(permutation + r * m + first, std::min(kRows, m - first), row_bytes,
                         in + r * n * row_bytes, out + (r * m + first) * row_bytes);
      }
    });
  }
};

REGISTER_CPU("Mask", MaskOp);
REGISTER_CPU("ApplyMask", ApplyMaskOp);
REGISTER_CPU("Permutation", PermutationOp);
REGISTER_CPU("Permute", PermuteOp);

}  // namespace
}  // namespace tfe_bench
