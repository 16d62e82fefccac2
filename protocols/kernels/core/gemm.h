// Matrix product over the ring Z_2^64, the work horse of every dense and convolution layer.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_H_

#include <cstdint>
#include <functional>

#include "protocols/kernels/core/parallel.h"

namespace tfe_bench {

// c[m,n] = a[m,k] * b[k,n] mod 2^bits, or c += when `accumulate`: the low `bits` bits of each word
// are right, those above are arbitrary. Row major; leading dimensions in elements. Any size, zeros
// included (k = 0 is the zero matrix). c overlaps neither a nor b.
// The low bits do not depend on the instruction set or on the number of threads.
// Instructions and addresses do not depend on the values. Nor does the running time, except by AMX:
// products of zeros take about a tenth less, since they need less power. Operands are shares, and
// shares of any value are uniformly distributed at each party.
void Gemm(int bits, int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t lda,
          const uint64_t* b, int64_t ldb, uint64_t* c, int64_t ldc, bool accumulate,
          const ParallelFor& parallel);

// Writes words [first, first + count) of a row-major matrix; several threads may call it at once.
using WordSource = std::function<void(int64_t first, int64_t count, uint64_t* out)>;

// As above for a b [k,n] that a source computes: block by block, where a block is multiplied. Each word
// is computed once.
void Gemm(int bits, int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t lda,
          const WordSource& b, uint64_t* c, int64_t ldc, bool accumulate,
          const ParallelFor& parallel);

// Multiplies small matrices by each instruction set that Gemm may choose here, and by portable code.
// Returns the name of the first one whose product differs, or nullptr.
const char* FindWrongIsa();

namespace internal {

struct GemmArgs;
struct GemmIsa;
// Gemm with the instruction set chosen by the caller, for tests of each path on one machine.
void GemmWith(const GemmIsa& isa, const GemmArgs& args, const ParallelFor& parallel);
// Whether this instruction set multiplies as portable code does.
bool IsRight(const GemmIsa& isa);

}  // namespace internal
}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_GEMM_H_
