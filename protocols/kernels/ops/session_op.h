// What every kernel that uses a session shares: its call, its part in it, and its masks.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_

#include <memory>
#include <string>

#include "protocols/kernels/core/session.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {

struct Call {
  std::shared_ptr<Session> session;
  int64_t step = 0, iteration = 0;
  Role role = kDealer;  // as SiteOp finds it
};

absl::Status FindCall(tensorflow::OpKernelContext* context, Call* call);

inline absl::Status ToStatus(const Error& error) {
  return error.empty() ? absl::OkStatus() : absl::AbortedError("TfeBench: " + error);
}

inline const uint64_t* Words(const tensorflow::Tensor& t) {
  return reinterpret_cast<const uint64_t*>(t.flat<int64_t>().data());
}
inline uint64_t* Words(tensorflow::Tensor* t) {
  return reinterpret_cast<uint64_t*>(t->flat<int64_t>().data());
}

// The attributes of one protocol invocation (register.h): who deals in it, and which masks an op
// uses.  An op that names no key deals under K1, one that names no tensor begins with mask 0.
struct MaskAttrs {
  int site, dealer, tensor = 0;
  KeyRole key = kK1;
  explicit MaskAttrs(tensorflow::OpKernelConstruction* c);
};

class SiteOp : public Kernel {
 public:
  explicit SiteOp(tensorflow::OpKernelConstruction* c) : Kernel(c), attrs_(c) {}

 protected:
  // Finds the call, in which this party must be the dealer, or an evaluator.
  absl::Status AsDealer(tensorflow::OpKernelContext* context, Call* call) const;
  absl::Status AsEvaluator(tensorflow::OpKernelContext* context, Call* call) const;
  // `words` words of mask `tensor` under a key, or under the key of this evaluator and the dealer.
  absl::Status Stream(const Call& call, KeyRole key, int tensor, int64_t words,
                      PrfStream* out) const;
  absl::Status OwnStream(const Call& call, int tensor, int64_t words, PrfStream* out) const {
    return Stream(call, call.role == kE1 ? kK1 : kK2, tensor, words, out);
  }
  // The mask that the attributes name.
  absl::Status Stream(const Call& call, int64_t words, PrfStream* out) const {
    return Stream(call, attrs_.key, attrs_.tensor, words, out);
  }

  const MaskAttrs attrs_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_
