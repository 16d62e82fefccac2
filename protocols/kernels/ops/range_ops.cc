// Whether all sums of two evaluators' words are 0 modulo 2^w, as one number for each row of them
// (protocols/ring/range_check.py): the evaluators hold v1 and v2 = -v1 then, and so the same digest
//   before + sum_i F(K3)_i (v_i >> low) modulo 2^61 - 1.
#include <vector>

#include "protocols/kernels/core/modular.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

class RangeDigestOp : public SiteOp {
 public:
  explicit RangeDigestOp(OpKernelConstruction* c) : SiteOp(c), width_(WidthAttr(c, "width")) {
    ReadAttrs(c, "low", &low_);
    // Residues of 61 bits would have two names modulo 2^61 - 1.
    Require(low_ >= 0 && low_ < width_ && width_ - low_ <= 60,
            "RangeDigest compares 1 to 60 bits");
  }

  void Work(OpKernelContext* context) override {
    const Call call = AsEvaluator(context);
    const Tensor &share = context->input(1), &before = context->input(2);
    Require(share.dims() == 2 && before.dims() == 1 && share.dim_size(0) == before.dim_size(0),
            "RangeDigest: the sizes do not fit");
    const int64_t rows = share.dim_size(0), n = share.dim_size(1);
    uint64_t* y = Words(Allocate(context, 0, before.shape()));
    if (rows == 0) return;
    // (A row begins with a block of its own.)
    const int64_t stride = n + n % 2, chunks = (n + kChunk - 1) / kChunk;
    const PrfStream stream = Stream(call, kK3, 0, rows * stride);
    const uint64_t *x = Words(share), *first = Words(before);
    const uint64_t flip = call.second(), ring = LowBits(width_);
    std::vector<uint64_t> parts(rows * chunks);
    ParallelRange(context, rows * chunks, 8 * kChunk, [&](int64_t begin, int64_t end) {
      alignas(64) uint64_t r[kChunk], v[kChunk];
      for (int64_t c = begin; c < end; ++c) {
        const int64_t row = c / chunks, at = c % chunks * kChunk;
        const int64_t count = std::min(kChunk, n - at);
        Fill(call, stream, row * stride + at, count, r);
        for (int64_t i = 0; i < count; ++i) {
          v[i] = (((x[row * n + at + i] ^ flip) - flip) & ring) >> low_;
        }
        parts[c] = InnerProduct61(0, r, v, count);
      }
    });
    for (int64_t row = 0; row < rows; ++row) {
      uint64_t sum = Canonical61(first[row]);
      for (int64_t c = 0; c < chunks; ++c) sum = Canonical61(sum + parts[row * chunks + c]);
      y[row] = sum;
    }
    if (stride) RecordShare(call, stream, rows * stride);
  }

 private:
  const int width_;
  int low_;
};

// share: [rows, n]; before: [rows], any words.  width: w; low: bits that are 0 in every sum anyway.
TFE_BENCH_CALL_OP("RangeDigest", RangeDigestOp,
    "share before: int64 -> digest: int64", SITE_ATTRS "; width: int; low: int", Outputs<2>);

}  // namespace
}  // namespace tfe_bench
