// Send and Recv: a tensor to, or from, another party under its tag.
#include <atomic>
#include <string>
#include <vector>

#include "protocols/kernels/core/memory.h"
#include "protocols/kernels/ops/register.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;
using tensorflow::TensorShape;

namespace {

class SendOp : public Kernel {
 public:
  explicit SendOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("site", &site_));
    OP_REQUIRES_OK(c, c->GetAttr("slot", &slot_));
    OP_REQUIRES_OK(c, c->GetAttr("peer", &peer_));
    OP_REQUIRES_OK(c, c->GetAttr("run_ahead", &run_ahead_));
    OP_REQUIRES_OK(c, c->GetAttr("deps", &deps_));
    OP_REQUIRES(c, peer_ >= 0 && peer_ < 3, absl::InvalidArgumentError("peer must be 0, 1 or 2"));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Tag tag{static_cast<uint64_t>(call.step), static_cast<uint32_t>(site_),
                  static_cast<uint32_t>(call.iteration), static_cast<uint32_t>(slot_)};
    auto keep = std::make_shared<Tensor>(context->input(1));
    const auto data = keep->tensor_data();
    OP_REQUIRES_OK(context, ToStatus(call.session->Send(
                                peer_, tag, run_ahead_, deps_,
                                reinterpret_cast<const uint8_t*>(data.data()), data.size(), keep)));
    Tensor* token;
    OP_REQUIRES_OK(context, Allocate(context, 0, {}, &token));
    token->scalar<int32_t>()() = 0;
  }

 private:
  int site_, slot_, peer_;
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

class RecvOp : public AsyncKernel {
 public:
  explicit RecvOp(OpKernelConstruction* c) : AsyncKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("site", &site_));
    OP_REQUIRES_OK(c, c->GetAttr("slot", &slot_));
    OP_REQUIRES_OK(c, c->GetAttr("peer", &peer_));
    OP_REQUIRES_OK(c, c->GetAttr("index", &index_));
    OP_REQUIRES_OK(c, c->GetAttr("T", &type_));
    OP_REQUIRES(c, peer_ >= 0 && peer_ < 3, absl::InvalidArgumentError("peer must be 0, 1 or 2"));
    OP_REQUIRES(c, index_ >= 0 && index_ < (1 << 20), absl::InvalidArgumentError("bad index"));
  }

  void WorkAsync(OpKernelContext* context, DoneCallback done) override {
    Call call;
    OP_REQUIRES_OK_ASYNC(context, FindCall(context, &call), done);
    TensorShape shape;
    OP_REQUIRES_OK_ASYNC(context, ShapeFrom(context->input(1), &shape), done);
    const size_t bytes =
        static_cast<size_t>(shape.num_elements()) * tensorflow::DataTypeSize(type_);
    OP_REQUIRES_ASYNC(context, FitsMemory(bytes),
                      absl::ResourceExhaustedError("TfeBench: a message of " +
                                                   std::to_string(bytes) +
                                                   " bytes does not fit into this host's memory"),
                      done);
    const Tag tag{static_cast<uint64_t>(call.step), static_cast<uint32_t>(site_),
                  static_cast<uint32_t>(call.iteration), static_cast<uint32_t>(slot_)};
    // A kernel that fails elsewhere in this call must not leave this one waiting for ever.
    auto* cancellation = context->cancellation_manager();
    tensorflow::CancellationToken token{};
    if (cancellation) {
      token = cancellation->get_cancellation_token();
      const bool registered = cancellation->RegisterCallback(
          token, [session = call.session, peer = peer_, tag] { session->CancelRecv(peer, tag); });
      OP_REQUIRES_ASYNC(context, registered, absl::CancelledError("TfeBench: cancelled"), done);
    }
    call.session->Recv(peer_, tag, index_, bytes,
                       [this, context, done, shape, cancellation, token](const Error& error,
                                                                         Message message) {
                         if (cancellation) cancellation->TryDeregisterCallback(token);
                         try {
                           if (!error.empty()) {
                             context->SetStatus(ToStatus(error));
                           } else if (message.size == 0) {
                             context->set_output(0, Tensor(type_, shape));
                           } else {
                             tensorflow::core::RefCountPtr<TensorBuffer> buffer(
                                 new MessageBuffer(std::move(message)));
                             context->set_output(0, Tensor(type_, shape, std::move(buffer)));
                           }
                         } catch (const std::exception&) {  // or the graph would wait for ever
                           context->SetStatus(FromException());
                         }
                         done();
                       });
  }

 private:
  int site_, slot_, peer_, index_;
  tensorflow::DataType type_;
};

// Lets the dealer on once its material has been used up far enough; hands `call` through.
class GateOp : public AsyncKernel {
 public:
  explicit GateOp(OpKernelConstruction* c) : AsyncKernel(c) {}
  void WorkAsync(OpKernelContext* context, DoneCallback done) override {
    Call call;
    OP_REQUIRES_OK_ASYNC(context, FindCall(context, &call), done);
    auto* cancellation = context->cancellation_manager();
    tensorflow::CancellationToken token{};
    auto number = std::make_shared<std::atomic<int64_t>>(0);
    if (cancellation) {
      token = cancellation->get_cancellation_token();
      const bool registered = cancellation->RegisterCallback(
          token, [session = call.session, number] { session->CancelGate(*number); });
      OP_REQUIRES_ASYNC(context, registered, absl::CancelledError("TfeBench: cancelled"), done);
    }
    *number = call.session->Gate([context, done, cancellation, token](const Error& error) {
      if (cancellation) cancellation->TryDeregisterCallback(token);
      if (error.empty()) {
        context->set_output(0, context->input(0));
      } else {
        context->SetStatus(ToStatus(error));
      }
      done();
    });
  }
};

class HeardOp : public Kernel {
 public:
  explicit HeardOp(OpKernelConstruction* c) : Kernel(c) {}
  void Work(OpKernelContext* context) override {
    Tensor* token;
    OP_REQUIRES_OK(context, Allocate(context, 0, {}, &token));
    token->scalar<int32_t>()() = 0;
  }
};

REGISTER_CPU("Gate", GateOp);
REGISTER_CPU("Heard", HeardOp);
REGISTER_CPU("HeardInLoop", HeardOp);
REGISTER_CPU("Send", SendOp);
REGISTER_CPU("SendInLoop", SendOp);
REGISTER_CPU("Recv", RecvOp);

}  // namespace
}  // namespace tfe_bench
