#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

absl::Status FindCall(OpKernelContext* context, Call* call) {
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

MaskAttrs::MaskAttrs(OpKernelConstruction* c) {
  OP_REQUIRES_OK(c, c->GetAttr("site", &site));
  OP_REQUIRES_OK(c, c->GetAttr("dealer", &dealer));
  OP_REQUIRES(c, dealer >= 0 && dealer < 3, absl::InvalidArgumentError("dealer must be 0, 1 or 2"));
  if (c->HasAttr("tensor")) OP_REQUIRES_OK(c, c->GetAttr("tensor", &tensor));
  if (!c->HasAttr("key")) return;
  int role;
  OP_REQUIRES_OK(c, c->GetAttr("key", &role));
  OP_REQUIRES(c, role >= 1 && role <= 3, absl::InvalidArgumentError("key must be 1, 2 or 3"));
  key = static_cast<KeyRole>(role);
}

absl::Status SiteOp::AsDealer(OpKernelContext* context, Call* call) const {
  TF_RETURN_IF_ERROR(FindCall(context, call));
  call->role = call->session->RoleOf(attrs_.dealer);
  if (call->role == kDealer) return absl::OkStatus();
  return absl::InternalError("only the dealer deals");
}

absl::Status SiteOp::AsEvaluator(OpKernelContext* context, Call* call) const {
  TF_RETURN_IF_ERROR(FindCall(context, call));
  call->role = call->session->RoleOf(attrs_.dealer);
  if (call->role != kDealer) return absl::OkStatus();
  return absl::InternalError("the dealer has no share");
}

absl::Status SiteOp::Stream(const Call& call, KeyRole key, int tensor, int64_t words,
                            PrfStream* out) const {
  return ToStatus(call.session->Stream(key, attrs_.dealer, attrs_.site, call.step, call.iteration,
                                       tensor, words * 8, out));
}

}  // namespace tfe_bench
