// matmul on the CPU: c[M,N] (+)= op(a) op(b) + bias + residual, sums in f32. By our own product where it pays
// (gemm.h), else by oneDNN.
//
// oneDNN: the same bits every time at one thread count; another one may group sums along K differently.
// It allocates per execution (its argument map, some 300 bytes, freed at once); everything else comes
// from the plan or from scratch.
#include "device/cpu/matmul.h"

#include <omp.h>

#include <algorithm>

#include "device/cpu/cpu_device.h"
#include "device/cpu/gemm.h"

namespace trireme::cpu {
namespace {

// oneDNN plans and runs with omp_get_max_threads() of the calling thread, and takes it that a team has as
// many: parts that none computes stay what they were, without a word. So it is told of no more than the
// environment lets a team have (OMP_THREAD_LIMIT, OMP_DYNAMIC).
class OmpThreads {
 public:
  explicit OmpThreads(int n) : before_(omp_get_max_threads()) {
    n = std::min(n, most_threads());
    if (before_ != n) omp_set_num_threads(n);
    if (omp_get_dynamic()) omp_set_dynamic(0);
  }
  OmpThreads(const OmpThreads&) = delete;
  ~OmpThreads() {
    if (omp_get_max_threads() != before_) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

// Calls without a device's cache (tests of a kernel by itself) plan anew.
template <class F>
auto with_cache(const Context& ctx, F&& f) {
  OmpThreads threads(ctx.threads);
  if (ctx.matmuls) return f(*ctx.matmuls);
  MatmulCache once;
  return f(once);
}

}  // namespace

int64_t matmul_scratch_bytes(const MatmulArgs& p, const Context& ctx, MatmulCache& cache) {
  if (p.c.numel() == 0) return 0;
  if (takes_own_matmul(p, ctx)) return own_matmul_scratch_bytes(p, ctx);
  MatmulPlan& plan = cache.find(key_of(p, ctx.threads));
  return plan.supported() ? plan.scratch_bytes() : matmul_in_f32_scratch_bytes(p, ctx, cache);
}

void matmul(const MatmulArgs& p, std::byte* scratch, const Context& ctx, MatmulCache& cache) {
  if (p.c.numel() == 0) return;
  if (takes_own_matmul(p, ctx)) return own_matmul(p, scratch, ctx);
  MatmulPlan& plan = cache.find(key_of(p, ctx.threads));
  if (plan.supported())
    plan.execute(p, scratch, cache.stream());
  else
    matmul_in_f32(p, scratch, ctx, cache);
}

int64_t scratch_bytes(const MatmulArgs& p, const Context& ctx) {
  if (has_few_rows(p)) return matmul_few_rows_scratch_bytes(p);
  return with_cache(ctx, [&](MatmulCache& cache) { return matmul_scratch_bytes(p, ctx, cache); });
}

void launch(const MatmulArgs& p, const Tensor& scratch, const Context& ctx) {
  if (has_few_rows(p)) return matmul_few_rows(p, scratch.data, ctx);
  with_cache(ctx, [&](MatmulCache& cache) { matmul(p, scratch.data, ctx, cache); });
}

// Both one after the other: of c in a cache nothing would be gained beside a product.
namespace {

MatmulArgs product_of(const MatmulGeluArgs& p) {
  return {.a = p.a, .b = p.b, .c = p.c, .trans_b = p.trans_b, .bias = p.bias, .residual = {}};
}
MatmulArgs product_of(const MatmulGeluBackwardArgs& p) {
  return {.a = p.a, .b = p.b, .c = p.c, .trans_b = p.trans_b, .bias = {}, .residual = {}};
}

}  // namespace

int64_t scratch_bytes(const MatmulGeluArgs& p, const Context& ctx) {
  return scratch_bytes(product_of(p), ctx);
}
int64_t scratch_bytes(const MatmulGeluBackwardArgs& p, const Context& ctx) {
  return scratch_bytes(product_of(p), ctx);
}
void launch(const MatmulGeluArgs& p, const Tensor& scratch, const Context& ctx) {
  launch(product_of(p), scratch, ctx);
  launch(GeluArgs{.x = p.c, .y = p.y}, Tensor(), ctx);
}
void launch(const MatmulGeluBackwardArgs& p, const Tensor& scratch, const Context& ctx) {
  launch(product_of(p), scratch, ctx);
  launch(GeluBackwardArgs{.x = p.x, .dy = p.c, .dx = p.c}, Tensor(), ctx);
}

}  // namespace trireme::cpu
