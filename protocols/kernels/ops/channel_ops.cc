// Send and Recv: a tensor to, or from, another party under its tag.
#include <atomic>
#include <functional>
#include <string>

#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

using tensorflow::TensorBuffer;

// Which message, of the invocation and with the peer that the attributes name.
struct Unpool {
  explicit Unpool(OpKernelConstruction* c) {
    ReadAttrs(c, "site", &site, "slot", &slot, "peer", &peer);
    Require(peer >= 0 && peer < 3, "peer must be 0, 1 or 2");
  }
  Tag In(const Call& call) const {
    return {static_cast<uint64_t>(call.step), static_cast<uint32_t>(site),
            static_cast<uint32_t>(call.iteration), static_cast<uint32_t>(slot)};
  }
  int site, slot, peer;
};

void PutToken(OpKernelContext* context, int output = 0) {
  Allocate(context, output, {})->scalar<int32_t>()() = 0;
}

class SendOp : public Kernel {
 public:
  explicit SendOp(OpKernelConstruction* c) : Kernel(c), route_(c) {
    ReadAttrs(c, "run_ahead", &run_ahead_, "deps", &deps_);
  }

  void Work(OpKernelContext* context) override {
    const Call call(context);
    auto keep = std::make_shared<Tensor>(context->input(1));
    const auto data = keep->tensor_data();
    Require(ToStatus(call.session->Send(
        route_.peer, route_.In(call), run_ahead_, deps_,
        reinterpret_cast<const uint8_t*>(data.data()), data.size(), keep)));
    PutToken(context);
  }

 private:
  const Unpool route_;
  bool run_ahead_;
  std::string deps_;
};

// A tensor that owns a received message without copying it.
class MessageBuffer : public TensorBuffer {
 public:
  explicit MessageBuffer(Message message)
      : TensorBuffer(message.data.get()), message_(std::move(message)) {}
  size_t size() const override { return message_.size; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* d) const override {
    d->set_requested_bytes(static_cast<int64_t>(message_.size));
    d->set_allocator_name("tfe_bench");
  }
  bool OwnsMemory() const override { return true; }

 private:
  Message message_;
};

// A kernel that fails elsewhere in this graph call must not leave another waiting for ever: calls
// `cancel` then.  What is returned takes that back.
std::function<void()> OnCancel(OpKernelContext* context, std::function<void()> cancel) {
  auto* manager = context->cancellation_manager();
  if (manager == nullptr) return [] {};
  const auto token = manager->get_cancellation_token();
  if (!manager->RegisterCallback(token, std::move(cancel))) {
    Require(absl::CancelledError("TfeBench: cancelled"));
  }
  return [manager, token] { manager->TryDeregisterCallback(token); };
}

class RecvOp : public AsyncKernel {
 public:
  explicit RecvOp(OpKernelConstruction* c) : AsyncKernel(c), route_(c) {
    ReadAttrs(c, "index", &index_, "T", &type_);
    Require(index_ >= 0 && index_ < (1 << 20), "bad index");
  }

  void WorkAsync(OpKernelContext* context, DoneCallback done) override {
    const Call call(context);
    const TensorShape shape = ShapeFrom(context->input(1));
    const size_t bytes =
        static_cast<size_t>(shape.num_elements()) * tensorflow::DataTypeSize(type_);
    CheckMemory("a message", bytes);
    const Tag tag = route_.In(call);
    const auto settle = OnCancel(context, [session = call.session, peer = route_.peer, tag] {
      session->CancelRecv(peer, tag);
    });
    call.session->Recv(
        route_.peer, tag, index_, bytes,
        [this, context, done, shape, settle](const Error& error, Message message) {
          settle();
          try {
            Require(ToStatus(error));
            if (message.size == 0) {
              context->set_output(0, Tensor(type_, shape));
            } else {
              tensorflow::core::RefCountPtr<TensorBuffer> buffer(
                  new MessageBuffer(std::move(message)));
              context->set_output(0, Tensor(type_, shape, std::move(buffer)));
            }
            PutToken(context, 1);
          } catch (const std::exception&) {  // or the graph would wait for ever
            context->SetStatus(FromException());
          }
          done();
        });
  }

 private:
  const Unpool route_;
  int index_;
  tensorflow::DataType type_;
};

// Lets the dealer on once its material has been used up far enough; hands `call` through.
class GateOp : public AsyncKernel {
 public:
  using AsyncKernel::AsyncKernel;
  void WorkAsync(OpKernelContext* context, DoneCallback done) override {
    const Call call(context);
    auto number = std::make_shared<std::atomic<int64_t>>(0);
    const auto settle = OnCancel(
        context, [session = call.session, number] { session->CancelGate(*number); });
    *number = call.session->Gate([context, done, settle](const Error& error) {
      settle();
      context->SetStatus(ToStatus(error));
      if (error.empty()) context->set_output(0, context->input(0));
      done();
    });
  }
};

class HeardOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override { PutToken(context); }
};

#define MESSAGE_ATTRS "T: {int64, uint8, int32, float64}; site: int; slot: int; peer: int"

#define SEND_OP(name)             \
  TFE_BENCH_CALL_OP(name, SendOp, \
    "data: T -> token: int32", \
    MESSAGE_ATTRS "; run_ahead: bool; deps: string", \
    tensorflow::shape_inference::ScalarShape)

SEND_OP("Send");
// The body of a loop cannot return tokens: there a Send is stateful, and so never pruned.
SEND_OP("SendInLoop").SetIsStateful();

// A message may come that a role does not use: its token is what keeps the Recv from being pruned, or
// the message would arrive in a step that is over.
TFE_BENCH_CALL_OP("Recv", RecvOp,
    "shape: int64 -> data: T, token: int32", MESSAGE_ATTRS "; index: int",
    [](tensorflow::shape_inference::InferenceContext* c) {
      c->set_output(1, c->Scalar());
      return ShapeFromInput<1>(c);
    });

// `call`, once the dealer's earlier material has been used up far enough (Session::Gate).
TFE_BENCH_CALL_OP("Gate", GateOp,
    "-> same: int64", "site: int", Outputs<0>);

// Keeps a Recv from being pruned in a loop, whose body cannot return tokens.
TFE_BENCH_OP("HeardInLoop", HeardOp,
    "token: int32 -> same: int32", "",
    tensorflow::shape_inference::ScalarShape).SetIsStateful();

}  // namespace
}  // namespace tfe_bench
