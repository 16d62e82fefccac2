// Registrations: attributes, types and shapes.  Every op is stateless in TensorFlow's eyes, so that
// automatic control dependencies do not chain independent messages; a unique `site` keeps two ops
// from being merged, `call` (a graph input) keeps them from being folded, and the tokens that Send
// returns keep them from being pruned.
//
// call: int64[3] = session handle, step, iteration.
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;
using Status = absl::Status;

Status CheckCtx(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
  DimensionHandle dim;
  return c->WithValue(c->Dim(unused, 0), 3, &dim);
}

Status ShapeFromInput1(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckCtx(c));
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

}  // namespace

#define SEND_OP(name)                             \
  REGISTER_OP(name)                               \
      .Input("call: int64")                       \
      .Input("data: T")                           \
      .Output("token: int32")                     \
      .Attr("T: {int64, uint8, int32, float64}")  \
      .Attr("site: int")                          \
      .Attr("slot: int")                          \
      .Attr("peer: int")                          \
      .Attr("run_ahead: bool")                    \
      .Attr("deps: string")                       \
      .SetShapeFn([](InferenceContext* c) {       \
        TF_RETURN_IF_ERROR(CheckCtx(c));          \
        c->set_output(0, c->Scalar());            \
        return absl::OkStatus();                  \
      })

SEND_OP("TfeBench>Send");
// The body of a loop cannot return tokens: there a Send is stateful, and so never pruned.
SEND_OP("TfeBench>SendInLoop").SetIsStateful();

REGISTER_OP("TfeBench>Recv")
    .Input("call: int64")
    .Input("shape: int64")
    .Output("data: T")
    .Attr("T: {int64, uint8, int32, float64}")
    .Attr("site: int")
    .Attr("slot: int")
    .Attr("peer: int")
    .Attr("index: int")
    .SetShapeFn(ShapeFromInput1);

// `call`, once the dealer's earlier material has been used up far enough (Session::Gate).
REGISTER_OP("TfeBench>Gate")
    .Input("call: int64")
    .Output("same: int64")
    .Attr("site: int")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckCtx(c));
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    });

// A zero that is there once the data is.  A message may come that a role does not use: its Recv must
// not be pruned, or the message would arrive in a step that is over.
#define HEARD_OP(name)                            \
  REGISTER_OP(name)                               \
      .Input("data: T")                           \
      .Output("token: int32")                     \
      .Attr("T: {int64, uint8, int32, float64}")  \
      .SetShapeFn(tensorflow::shape_inference::ScalarShape)

HEARD_OP("TfeBench>Heard");
HEARD_OP("TfeBench>HeardInLoop").SetIsStateful();

// Words of a pairwise mask.
REGISTER_OP("TfeBench>Mask")
    .Input("call: int64")
    .Input("shape: int64")
    .Output("mask: int64")
    .MASK_ATTRS.SetShapeFn(ShapeFromInput1);

// x + mask, x - mask or x ^ mask, the mask never stored.
REGISTER_OP("TfeBench>ApplyMask")
    .Input("call: int64")
    .Input("x: int64")
    .Output("y: int64")
    .MASK_ATTRS.Attr("op: {'add', 'sub', 'xor', 'add128', 'sub128'}")
    .Attr("sent: bool")
    .SetShapeFn([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckCtx(c));
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    });

// a * b mod 2^128 on pairs of words [..., 2], low word first.
REGISTER_OP("TfeBench>WideMul")
    .Input("a: int64")
    .Input("b: int64")
    .Output("c: int64")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

// A secret permutation of 0..n-1 per row, known to the holders of one key.
REGISTER_OP("TfeBench>Permutation")
    .Input("call: int64")
    .Input("shape: int64")
    .Output("permutation: int32")
    .MASK_ATTRS.SetShapeFn(ShapeFromInput1);

// y[r, i, :] = x[r, permutation[r, i], :].
REGISTER_OP("TfeBench>Permute")
    .Input("x: int64")
    .Input("permutation: int32")
    .Output("y: int64")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle x, p;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &x));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &p));
      c->set_output(0, x);
      return absl::OkStatus();
    });

REGISTER_OP("TfeBench>Planes")
    .Input("x: int64")
    .Output("planes: int64")
    .Attr("bits: int")
    .SetShapeFn(Vectors);

REGISTER_OP("TfeBench>DifferencePlanes")
    .Input("x: int64")
    .Input("left: int32")
    .Input("right: int32")
    .Output("planes: int64")
    .Attr("bits: int")
    .SetShapeFn(Vectors);

#define LUT_ATTRS                \
  SITE_ATTRS.Attr("bits: int")   \
      .Attr("widths: list(int)") \
      .Attr("groups: list(int)") \
      .Attr("group_counts: list(int)") \
      .Attr("absorb: bool")

REGISTER_OP("TfeBench>LutDeal")
    .Input("call: int64")
    .Input("lam_planes: int64")
    .Output("message: int64")
    .Output("top: int64")
    .LUT_ATTRS.SetShapeFn(Vectors);

REGISTER_OP("TfeBench>LutOpen")
    .Input("call: int64")
    .Input("m_planes: int64")
    .Input("dealt: int64")
    .Output("message: int64")
    .LUT_ATTRS.SetShapeFn(Vectors);

REGISTER_OP("TfeBench>LutNode")
    .Input("call: int64")
    .Input("m_planes: int64")
    .Input("own: int64")
    .Input("other: int64")
    .Input("dealt: int64")
    .Output("message: int64")
    .Attr("level: int")
    .LUT_ATTRS.SetShapeFn(Vectors);

REGISTER_OP("TfeBench>UnpackBits")
    .Input("words: int64")
    .Input("n: int64")
    .Output("bits: int64")
    .SetShapeFn(Vectors);

// The low `width` bits of each word, back to back, little endian.
REGISTER_OP("TfeBench>PackWords")
    .Input("x: int64")
    .Output("packed: uint8")
    .Attr("width: int")
    .SetShapeFn(Vectors);
REGISTER_OP("TfeBench>UnpackWords")
    .Input("packed: uint8")
    .Input("n: int64")
    .Output("x: int64")
    .Attr("width: int")
    .SetShapeFn(Vectors);

// Sum over i of a_i @ b_i over Z_2^64; leading dimensions are batches, which broadcast.
REGISTER_OP("TfeBench>RingMatMul")
    .Input("a: N * int64")
    .Input("b: N * int64")
    .Output("c: int64")
    .Attr("N: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      int n;
      TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
      ShapeHandle a, b;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 2, &a));
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(n), 2, &b));
      if (!c->RankKnown(a) || !c->RankKnown(b)) {
        c->set_output(0, c->UnknownShape());
        return absl::OkStatus();
      }
      DimensionHandle unused;
      TF_RETURN_IF_ERROR(c->Merge(c->Dim(a, -1), c->Dim(b, -2), &unused));
      ShapeHandle left, right, lead, out;
      TF_RETURN_IF_ERROR(c->Subshape(a, 0, -2, &left));
      TF_RETURN_IF_ERROR(c->Subshape(b, 0, -2, &right));
      TF_RETURN_IF_ERROR(tensorflow::shape_inference::BroadcastBinaryOpOutputShapeFnHelper(
          c, left, right, /*incompatible_shape_error=*/true, &lead));
      TF_RETURN_IF_ERROR(
          c->Concatenate(lead, c->Matrix(c->Dim(a, -2), c->Dim(b, -1)), &out));
      c->set_output(0, out);
      return absl::OkStatus();
    });

REGISTER_OP("TfeBench>EncodeFixed")
    .Input("x: float64")
    .Output("ring: int64")
    .Attr("fractional_bits: int")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_OP("TfeBench>DecodeFixed")
    .Input("ring: int64")
    .Output("x: float64")
    .Attr("fractional_bits: int")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

}  // namespace tfe_bench
