// Truncation that never fails (T3, protocols/ring/truncation.py), each party's part in one pass.
//
// With r = l1 + l2 mod 2^64 and c = m + 2^62 the value is, for |x| < 2^62,
//   x / 2^f = (c >> f) - (r >> f) + 2^(64-f) msb(r) (1 - msb(c)) - 2^(62-f), rounded.
// D's message, n elements: (r >> f) - F(K1, 0) [8n bytes], msb(r) - F(K1, 1) packed with f bits
// each.  The evaluators open (1 - msb(c)) msb(r) mod 2^f under F(K1, 2) and F(K2, 2).
#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/chunks.h"
#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("TfeBench>TruncateDeal")
    .Input("call: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Output("message: uint8")
    .Output("first: int64")
    .Output("second: int64")
    .Attr("site: int")
    .Attr("dealer: int")
    .Attr("drop: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      c->set_output(2, c->input(1));
      return absl::OkStatus();
    });

// dealt: D's message at E2, empty at E1.  own: what is sent; part: this evaluator's new l1 or l2.
REGISTER_OP("TfeBench>TruncateShare")
    .Input("call: int64")
    .Input("m: int64")
    .Input("dealt: uint8")
    .Output("own: uint8")
    .Output("part: int64")
    .Attr("site: int")
    .Attr("dealer: int")
    .Attr("drop: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    });

REGISTER_OP("TfeBench>TruncateOpen")
    .Input("m: int64")
    .Input("own: uint8")
    .Input("got: uint8")
    .Output("opened: int64")
    .Attr("drop: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    });

constexpr uint64_t kHalf = uint64_t{1} << 62;

class TruncateOp : public Kernel {
 public:
  explicit TruncateOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("site", &site_));
    OP_REQUIRES_OK(c, c->GetAttr("dealer", &dealer_));
    OP_REQUIRES_OK(c, c->GetAttr("drop", &drop_));
    OP_REQUIRES(c, drop_ >= 1 && drop_ <= 62, absl::InvalidArgumentError("drop must be 1..62"));
  }

 protected:
  int64_t MessageBytes(int64_t n) const { return 8 * n + PackedBytes(n, drop_); }
  absl::Status Stream(const Call& call, KeyRole key, int tensor, int64_t n, PrfStream* out) const {
    return ToStatus(call.session->Stream(key, dealer_, site_, call.step, call.iteration, tensor,
                                         n * 8, out));
  }

  int site_, dealer_, drop_;
};

class TruncateDealOp : public TruncateOp {
 public:
  using TruncateOp::TruncateOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    OP_REQUIRES(context, call.session->RoleOf(dealer_) == kDealer,
                absl::InternalError("only the dealer deals"));
    const Tensor &l1 = context->input(1), &l2 = context->input(2);
    const int64_t n = l1.NumElements();
    OP_REQUIRES(context, l2.NumElements() == n,
                absl::InvalidArgumentError("TruncateDeal: the sizes do not fit"));
    Tensor *out, *first, *second;
    OP_REQUIRES_OK(context, Allocate(context, 0, {MessageBytes(n)}, &out));
    OP_REQUIRES_OK(context, Allocate(context, 1, l1.shape(), &first));
    OP_REQUIRES_OK(context, Allocate(context, 2, l1.shape(), &second));
    if (n == 0) return;
    PrfStream shifted, top, own1, own2;
    OP_REQUIRES_OK(context, Stream(call, kK1, 0, n, &shifted));
    OP_REQUIRES_OK(context, Stream(call, kK1, 1, n, &top));
    OP_REQUIRES_OK(context, Stream(call, kK1, 2, n, &own1));
    OP_REQUIRES_OK(context, Stream(call, kK2, 2, n, &own2));
    const uint64_t *x = Words(l1), *y = Words(l2);
    uint64_t *p = Words(first), *q = Words(second);
    uint8_t* to = out->flat<uint8_t>().data();
    const int up = 64 - drop_;
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t a[kChunk], b[kChunk], c[kChunk], d[kChunk], word[kChunk], bit[kChunk];
      Fill(call, shifted, begin, count, a);
      Fill(call, top, begin, count, b);
      Fill(call, own1, begin, count, c);
      Fill(call, own2, begin, count, d);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t r = x[begin + i] + y[begin + i];
        word[i] = (r >> drop_) - a[i];
        bit[i] = (r >> 63) - b[i];
        p[begin + i] = a[i] + (c[i] << up);
        q[begin + i] = word[i] + (d[i] << up);
      }
      PackRange(word, count, 64, to + 8 * begin, 0, count);
      PackRange(bit, count, drop_, to + 8 * n + begin * drop_ / 8, 0, count);
    });
    call.session->Record(shifted, kMasked, to, 8 * n);
    call.session->Record(top, kMasked, to + 8 * n, MessageBytes(n) - 8 * n);
    RecordShare(call, own1, n);
    RecordShare(call, own2, n);
  }
};

class TruncateShareOp : public TruncateOp {
 public:
  using TruncateOp::TruncateOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Role role = call.session->RoleOf(dealer_);
    OP_REQUIRES(context, role != kDealer, absl::InternalError("the dealer has no share"));
    const Tensor &m = context->input(1), &dealt = context->input(2);
    const int64_t n = m.NumElements();
    OP_REQUIRES(context, role == kE1 || dealt.NumElements() == MessageBytes(n),
                absl::InvalidArgumentError("TruncateShare: the sizes do not fit"));
    Tensor *own, *part;
    OP_REQUIRES_OK(
        context, Allocate(context, 0, {PackedBytes(n, drop_)}, &own));
    OP_REQUIRES_OK(context, Allocate(context, 1, m.shape(), &part));
    if (n == 0) return;
    PrfStream shifted, top, leaving;
    if (role == kE1) {
      OP_REQUIRES_OK(context, Stream(call, kK1, 0, n, &shifted));
      OP_REQUIRES_OK(context, Stream(call, kK1, 1, n, &top));
    }
    OP_REQUIRES_OK(context, Stream(call, role == kE1 ? kK1 : kK2, 2, n, &leaving));
    const uint64_t* masked = Words(m);
    const uint8_t* from = dealt.flat<uint8_t>().data();
    uint64_t* y = Words(part);
    uint8_t* to = own->flat<uint8_t>().data();
    const int up = 64 - drop_;
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t u[kChunk], b[kChunk], pad[kChunk];
      if (role == kE1) {
        Fill(call, shifted, begin, count, u);
        Fill(call, top, begin, count, b);
      } else {
        UnpackRange(from + 8 * begin, count, 64, u, 0, count);
        UnpackRange(from + 8 * n + begin * drop_ / 8, count, drop_, b, 0, count);
      }
      Fill(call, leaving, begin, count, pad);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t low = 1 - ((masked[begin + i] + kHalf) >> 63);
        y[begin + i] = u[i] + (pad[i] << up);
        pad[i] += low * b[i];
      }
      PackRange(pad, count, drop_, to + begin * drop_ / 8, 0, count);
    });
    if (role == kE1) {
      RecordShare(call, shifted, n);
      RecordShare(call, top, n);
    }
    call.session->Record(leaving, kMasked, to, PackedBytes(n, drop_));
  }
};

class TruncateOpenOp : public Kernel {
 public:
  explicit TruncateOpenOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("drop", &drop_));
    OP_REQUIRES(c, drop_ >= 1 && drop_ <= 62, absl::InvalidArgumentError("drop must be 1..62"));
  }
  void Work(OpKernelContext* context) override {
    const Tensor &m = context->input(0), &own = context->input(1), &got = context->input(2);
    const int64_t n = m.NumElements();
    OP_REQUIRES(context,
                own.NumElements() == PackedBytes(n, drop_) && got.NumElements() == own.NumElements(),
                absl::InvalidArgumentError("TruncateOpen: the sizes do not fit"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &out));
    if (n == 0) return;
    const uint64_t* masked = Words(m);
    const uint8_t *mine = own.flat<uint8_t>().data(), *theirs = got.flat<uint8_t>().data();
    uint64_t* y = Words(out);
    const int up = 64 - drop_;
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t a[kChunk], b[kChunk];
      UnpackRange(mine + begin * drop_ / 8, count, drop_, a, 0, count);
      UnpackRange(theirs + begin * drop_ / 8, count, drop_, b, 0, count);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t c = masked[begin + i] + kHalf;
        y[begin + i] = (c >> drop_) + ((a[i] + b[i]) << up) - (kHalf >> drop_);
      }
    });
  }

 private:
  int drop_;
};

REGISTER_KERNEL_BUILDER(Name("TfeBench>TruncateDeal").Device(tensorflow::DEVICE_CPU),
                        TruncateDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>TruncateShare").Device(tensorflow::DEVICE_CPU),
                        TruncateShareOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>TruncateOpen").Device(tensorflow::DEVICE_CPU),
                        TruncateOpenOp);

}  // namespace
}  // namespace tfe_bench
