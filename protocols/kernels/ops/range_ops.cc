// Whether all sums of two evaluators' words are 0 modulo 2^w, as one number for each row of them
// (protocols/ring/range_check.py): the evaluators hold v1 and v2 = -v1 then, and so the same digest
//   before + sum_i F(K3)_i (v_i >> low) modulo 2^61 - 1.
#include <vector>

#include "protocols/kernels/core/modular.h"
#include "protocols/kernels/ops/chunks.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// share: [rows, n]; before: [rows], any words.  width: w; low: bits that are 0 in every sum anyway.
REGISTER_OP("TfeBench>RangeDigest")
    .Input("call: int64")
    .Input("share: int64")
    .Input("before: int64")
    .Output("digest: int64")
    .SITE_ATTRS.Attr("width: int")
    .Attr("low: int")
    .SetShapeFn(LikeInput<2>);

class RangeDigestOp : public SiteOp {
 public:
  explicit RangeDigestOp(OpKernelConstruction* c) : SiteOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES_OK(c, c->GetAttr("low", &low_));
    // Residues of 61 bits would have two names modulo 2^61 - 1.
    OP_REQUIRES(c, width_ >= 1 && width_ <= 64 && low_ >= 0 && low_ < width_ && width_ - low_ <= 60,
                absl::InvalidArgumentError("RangeDigest compares 1 to 60 bits"));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const Tensor &share = context->input(1), &before = context->input(2);
    OP_REQUIRES(context, share.dims() == 2 && before.dims() == 1 &&
                             share.dim_size(0) == before.dim_size(0),
                absl::InvalidArgumentError("RangeDigest: the sizes do not fit"));
    const int64_t rows = share.dim_size(0), n = share.dim_size(1);
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, before.shape(), &out));
    if (rows == 0) return;
    // (A row begins with a block of its own.)
    const int64_t stride = n + n % 2, chunks = (n + kChunk - 1) / kChunk;
    PrfStream stream;
    OP_REQUIRES_OK(context, Stream(call, kK3, 0, rows * stride, &stream));
    const uint64_t *x = Words(share), *first = Words(before);
    const uint64_t flip = call.role == kE2 ? ~uint64_t{0} : 0;
    const uint64_t ring = width_ == 64 ? ~uint64_t{0} : (uint64_t{1} << width_) - 1;
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
    uint64_t* y = Words(out);
    for (int64_t row = 0; row < rows; ++row) {
      uint64_t sum = Canonical61(first[row]);
      for (int64_t c = 0; c < chunks; ++c) sum = Canonical61(sum + parts[row * chunks + c]);
      y[row] = sum;
    }
    if (stride) RecordShare(call, stream, rows * stride);
  }

 private:
  int width_, low_;
};

REGISTER_CPU("RangeDigest", RangeDigestOp);

}  // namespace
}  // namespace tfe_bench
