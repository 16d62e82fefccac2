// What every kernel that uses a session shares: finding it, and turning errors into statuses.
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
};

inline absl::Status FindCall(tensorflow::OpKernelContext* context, Call* call) {
  const auto ctx = context->input(0).flat<int64_t>();
  if (ctx.size() != 3) return absl::InvalidArgumentError("ctx must hold 3 numbers");
  call->session = FindSession(ctx(0));
  if (!call->session) return absl::FailedPreconditionError("TfeBench: the session has ended");
  call->step = ctx(1);
  call->iteration = ctx(2);
  if (!call->session->StepIsOpen(call->step)) {
    return absl::FailedPreconditionError("TfeBench: this step is not running");
  }
  return absl::OkStatus();
}

inline absl::Status ToStatus(const Error& error) {
  return error.empty() ? absl::OkStatus() : absl::AbortedError("TfeBench: " + error);
}

inline const uint64_t* Words(const tensorflow::Tensor& t) {
  return reinterpret_cast<const uint64_t*>(t.flat<int64_t>().data());
}
inline uint64_t* Words(tensorflow::Tensor* t) {
  return reinterpret_cast<uint64_t*>(t->flat<int64_t>().data());
}

// The attributes that name one mask.
struct MaskAttrs {
  int site, tensor, dealer, key;
  explicit MaskAttrs(tensorflow::OpKernelConstruction* c);
  absl::Status Stream(const Call& call, uint64_t bytes, PrfStream* out) const;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_SESSION_OP_H_
