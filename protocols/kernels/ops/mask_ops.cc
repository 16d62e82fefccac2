// Masks and secret permutations from the pairwise keys.
#include <algorithm>
#include <cstring>
#include <vector>

#include "protocols/kernels/core/permutation.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

class MaskOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

  void Work(OpKernelContext* context) override {
    const Call call(context);
    const TensorShape shape = ShapeFrom(context->input(1));
    uint64_t* words = Words(Allocate(context, 0, shape));
    const int64_t n = shape.num_elements();
    const PrfStream stream = Stream(call, n);
    ParallelRange(context, n / 2, 4, [&](int64_t begin, int64_t end) {
      Fill(call, stream, 2 * begin, 2 * (end - begin), words + 2 * begin);
    });
    if (n % 2) {
      uint64_t block[2];
      Fill(call, stream, n - 1, 1, block);
      words[n - 1] = block[0];
    }
    call.session->Record(stream, kShare, words, n * 8);
  }
};

class ApplyMaskOp : public SiteOp {
 public:
  explicit ApplyMaskOp(OpKernelConstruction* c) : SiteOp(c) {
    const auto op = Attr<std::string>(c, "op");
    op_ = op[0];  // 'a'dd, 's'ub, 'x'or
    wide_ = op.size() > 3;
    ReadAttrs(c, "sent", &sent_);
  }

  void Work(OpKernelContext* context) override {
    const Call call(context);
    const Tensor& x = context->input(1);
    uint64_t* out = Words(Allocate(context, 0, x.shape()));
    const int64_t n = x.NumElements();
    Require(!wide_ || (x.dims() > 0 && x.dim_size(x.dims() - 1) == 2),
            "128-bit elements want a last axis of 2 words");
    const PrfStream stream = Stream(call, n);
    const uint64_t* in = Words(x);
    Chunks(context, n, 3, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t mask[kChunk];
      Fill(call, stream, first, count, mask);
      const uint64_t* a = in + first;
      uint64_t* b = out + first;
      if (wide_) {  // a block is one 128-bit element
        for (int64_t i = 0; i < count; i += 2) {
          unsigned __int128 v, k;
          std::memcpy(&v, a + i, 16);
          std::memcpy(&k, mask + i, 16);
          v = op_ == 'a' ? v + k : v - k;
          std::memcpy(b + i, &v, 16);
        }
      } else if (op_ == 'a') {
        for (int64_t i = 0; i < count; ++i) b[i] = a[i] + mask[i];
      } else if (op_ == 's') {
        for (int64_t i = 0; i < count; ++i) b[i] = a[i] - mask[i];
      } else {
        for (int64_t i = 0; i < count; ++i) b[i] = a[i] ^ mask[i];
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
    const Call call(context);
    const TensorShape shape = ShapeFrom(context->input(1));
    Require(shape.dims() == 2 && shape.dim_size(1) <= INT32_MAX,
            "a permutation has the shape [rows, n], n < 2^31");
    int32_t* to = Allocate(context, 0, shape)->flat<int32_t>().data();
    const int64_t rows = shape.dim_size(0), n = shape.dim_size(1);
    if (rows * n == 0) return;
    // Rejection sampling draws a random number of words: each row owns four times what it expects,
    // which it exceeds with a probability far below 2^-128.
    const int64_t blocks_per_row = n + 64;
    const PrfStream stream = Stream(call, rows * blocks_per_row * 2);
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

// What these ops ask of a permutation [rows, m] of entries below n.
const int32_t* Entries(const Tensor& p, int64_t n, const char* wrong) {
  const int32_t* of = p.flat<int32_t>().data();
  uint32_t most = 0;
  for (int64_t i = 0; i < p.NumElements(); ++i) {
    most = std::max(most, static_cast<uint32_t>(of[i]));  // negative ones are large
  }
  Require(p.NumElements() == 0 || static_cast<int64_t>(most) < n, wrong);
  return of;
}

class PermuteOp : public Kernel {
 public:
  using Kernel::Kernel;

  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& p = context->input(1);
    Require(x.dims() >= 2 && p.dims() == 2 && x.dim_size(0) == p.dim_size(0),
            "Permute expects x [rows, n, ...] and permutation [rows, m]");
    const int64_t rows = p.dim_size(0), n = x.dim_size(1), m = p.dim_size(1);
    const int32_t* permutation = Entries(p, n, "Permute: index out of range");
    TensorShape shape = x.shape();
    shape.set_dim(1, m);
    Tensor* y = Allocate(context, 0, shape);
    if (y->NumElements() == 0) return;
    const int64_t row_bytes = y->NumElements() / (rows * m) * 8;
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

class ComposeOp : public Kernel {
 public:
  using Kernel::Kernel;

  void Work(OpKernelContext* context) override {
    const Tensor &p = context->input(0), &q = context->input(1);
    Require(p.dims() == 1 && q.dims() == 1, "Compose expects permutations [n] and [m]");
    const int32_t* last = Entries(q, p.NumElements(), "Compose: index out of range");
    const int32_t* first = p.flat<int32_t>().data();
    int32_t* to = Allocate(context, 0, q.shape())->flat<int32_t>().data();
    for (int64_t i = 0; i < q.NumElements(); ++i) to[i] = first[last[i]];
  }
};

class InvertOp : public Kernel {
 public:
  using Kernel::Kernel;

  void Work(OpKernelContext* context) override {
    const Tensor& p = context->input(0);
    const int64_t n = p.NumElements();
    Require(p.dims() == 1 && n <= INT32_MAX, "Invert expects a permutation [n], n < 2^31");
    const int32_t* from = Entries(p, n, "Invert: index out of range");
    int32_t* to = Allocate(context, 0, p.shape())->flat<int32_t>().data();
    std::fill(to, to + n, -1);
    for (int64_t i = 0; i < n; ++i) to[from[i]] = static_cast<int32_t>(i);
    Require(std::find(to, to + n, -1) == to + n, "Invert: an index stands there twice");
  }
};

// Words of a pairwise mask.
TFE_BENCH_CALL_OP("Mask", MaskOp,
    "shape: int64 -> mask: int64", MASK_ATTRS, ShapeFromInput<1>);

// x + mask, x - mask or x ^ mask, the mask never stored.
TFE_BENCH_CALL_OP("ApplyMask", ApplyMaskOp,
    "x: int64 -> y: int64",
    MASK_ATTRS "; op: {'add', 'sub', 'xor', 'add128', 'sub128'}; sent: bool", Outputs<1>);

// A secret permutation of 0..n-1 per row, known to the holders of one key.
TFE_BENCH_CALL_OP("Permutation", PermutationOp,
    "shape: int64 -> permutation: int32", MASK_ATTRS, ShapeFromInput<1>);

void PermutedShape(InferenceContext* c) {
  ShapeHandle x, permutation, out;
  Require(c->WithRankAtLeast(c->input(0), 2, &x));
  Require(c->WithRank(c->input(1), 2, &permutation));
  Require(c->Subshape(x, 2, &out));
  Require(c->Concatenate(permutation, out, &out));
  c->set_output(0, out);
}

// y[r, i, ...] = x[r, permutation[r, i], ...].
TFE_BENCH_OP("Permute", PermuteOp,
    "x: int64, permutation: int32 -> y: int64", "", Infer<PermutedShape>);

// y[i] = p[q[i]].
TFE_BENCH_OP("Compose", ComposeOp, "p q: int32 -> y: int32", "", Outputs<1>);

// y[p[i]] = i.
TFE_BENCH_OP("Invert", InvertOp, "p: int32 -> y: int32", "", Outputs<0>);

}  // namespace
}  // namespace tfe_bench
