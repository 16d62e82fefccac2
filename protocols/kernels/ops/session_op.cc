#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

Call::Call(OpKernelContext* context) {
  const auto call = context->input(0).flat<int64_t>();
  Require(call.size() == 3, "TfeBench: a call is 3 numbers");
  session = FindSession(call(0));
  if (!session) Require(absl::FailedPreconditionError("TfeBench: the session has ended"));
  step = call(1);
  iteration = call(2);
  if (!session->StepIsOpen(step)) {
    Require(absl::FailedPreconditionError("TfeBench: this step is not running"));
  }
}

MaskAttrs::MaskAttrs(OpKernelConstruction* c) {
  ReadAttrs(c, "site", &site, "dealer", &dealer);
  Require(dealer >= 0 && dealer < 3, "dealer must be 0, 1 or 2");
  if (c->HasAttr("tensor")) ReadAttrs(c, "tensor", &tensor);
  if (!c->HasAttr("key")) return;
  const int role = Attr<int>(c, "key");
  Require(role >= 1 && role <= 3, "key must be 1, 2 or 3");
  key = static_cast<KeyRole>(role);
}

Call SiteOp::AsDealer(OpKernelContext* context) const {
  Call call(context);
  call.role = call.session->RoleOf(attrs_.dealer);
  if (call.role != kDealer) Require(absl::InternalError("only the dealer deals"));
  return call;
}

Call SiteOp::AsEvaluator(OpKernelContext* context) const {
  Call call(context);
  call.role = call.session->RoleOf(attrs_.dealer);
  if (call.role == kDealer) Require(absl::InternalError("the dealer has no share"));
  return call;
}

PrfStream SiteOp::Stream(const Call& call, KeyRole key, int tensor, int64_t words) const {
  PrfStream stream;
  Require(ToStatus(call.session->Stream(key, attrs_.dealer, attrs_.site, call.step, call.iteration,
                                        tensor, words * 8, &stream)));
  return stream;
}

void RecordShare(const Call& call, const PrfStream& stream, int64_t n) {
  if (!call.session->recording()) return;
  std::vector<uint64_t> pad(n + 1);
  Fill(call, stream, 0, n, pad.data());
  call.session->Record(stream, kShare, pad.data(), n * 8);
}

}  // namespace tfe_bench
