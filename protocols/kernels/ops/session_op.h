// What every kernel that uses a session shares: its call, its part in it, and its masks.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_

#include <memory>
#include <string>

#include "protocols/kernels/core/session.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {

// One execution of a graph: its first input, int64[3] = session handle, step, iteration.
struct Call {
  explicit Call(OpKernelContext* context);
  std::shared_ptr<Session> session;
  int64_t step, iteration;
  Role role = kDealer;  // as SiteOp finds it

  // All ones at E2, which adds what both evaluators know.
  uint64_t second() const { return role == kE2 ? ~uint64_t{0} : 0; }
};

// Registers an op that belongs to a call.
#define TFE_BENCH_CALL_OP(name, kernel, signature, ...) \
  TFE_BENCH_OP(name, kernel, "call: int64, " signature, __VA_ARGS__)

inline absl::Status ToStatus(const Error& error) {
  return error.empty() ? absl::OkStatus() : absl::AbortedError("TfeBench: " + error);
}

// The attributes of one protocol invocation: who deals in it, and which masks an op uses.  An op
// that names no key deals under K1, one that names no tensor begins with mask 0.
#define SITE_ATTRS "site: int; dealer: int"
#define TENSOR_ATTRS SITE_ATTRS "; tensor: int"
#define MASK_ATTRS TENSOR_ATTRS "; key: int"
struct MaskAttrs {
  int site, dealer, tensor = 0;
  KeyRole key = kK1;
  explicit MaskAttrs(OpKernelConstruction* c);
};

class SiteOp : public Kernel {
 public:
  explicit SiteOp(OpKernelConstruction* c) : Kernel(c), attrs_(c) {}
  // Attributes that one side alone has; a class that has such hides these.
  void ReadDealer(OpKernelConstruction*) {}
  void ReadEvaluator(OpKernelConstruction*) {}

 protected:
  // The call, in which this party must be the dealer, or an evaluator.
  Call AsDealer(OpKernelContext* context) const;
  Call AsEvaluator(OpKernelContext* context) const;
  // `words` words of mask `tensor` under a key, or under the key of this evaluator and the dealer.
  PrfStream Stream(const Call& call, KeyRole key, int tensor, int64_t words) const;
  PrfStream OwnStream(const Call& call, int tensor, int64_t words) const {
    return Stream(call, call.role == kE1 ? kK1 : kK2, tensor, words);
  }
  // The mask that the attributes name.
  PrfStream Stream(const Call& call, int64_t words) const {
    return Stream(call, attrs_.key, attrs_.tensor, words);
  }

  const MaskAttrs attrs_;
};

// The ops of a protocol's two sides: of a class with Deal(context, call) and Share(context, call).
template <class Op>
class Dealer : public Op {
 public:
  explicit Dealer(OpKernelConstruction* c) : Op(c) { this->ReadDealer(c); }
  void Work(OpKernelContext* context) override { this->Deal(context, this->AsDealer(context)); }
};
template <class Op>
class Evaluator : public Op {
 public:
  explicit Evaluator(OpKernelConstruction* c) : Op(c) { this->ReadEvaluator(c); }
  void Work(OpKernelContext* context) override {
    this->Share(context, this->AsEvaluator(context));
  }
};

// A mask's words [first, first + count); `first` must be even, and out has room for an even count.
inline void Fill(const Call& call, const PrfStream& stream, int64_t first, int64_t count,
                 uint64_t* out) {
  FillMask(*call.session, stream, first / 2, (count + 1) / 2, reinterpret_cast<uint8_t*>(out));
}

// The debug log's line of a mask that became a share: all of it, though it was made in chunks.
void RecordShare(const Call& call, const PrfStream& stream, int64_t n);
// ... and of a tensor that leaves under a mask.
inline void RecordMasked(const Call& call, const PrfStream& stream, const Tensor& sent) {
  call.session->Record(stream, kMasked, sent.data(), sent.TotalBytes());
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_
