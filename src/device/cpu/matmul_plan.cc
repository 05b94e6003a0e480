// From a problem to a oneDNN primitive.
//
// c = a b + bias (oneDNN's own bias, in f32) + sum * c (sum post-op) + residual (binary_add post-op): all
// inside one f32 accumulation, one rounding at the store. Dense rows go to its brgemm kernels
// (jit:avx512_core_bf16 and avx512_core); row strides longer than the rows go to its gemm:jit, which for bf16
// outputs takes scratch of four times c.
#include "base/file.h"
#include "device/cpu/matmul.h"

namespace trireme::cpu {
namespace {

dnnl_data_type_t dnnl_type(DType t) {
  require(t == DType::f32 || t == DType::bf16, "oneDNN is asked for f32 and bf16 only");
  return t == DType::f32 ? dnnl_f32 : dnnl_bf16;
}

// rows x cols as the product sees it; stored transposed when told.
dnnl_memory_desc_t matrix_desc(int64_t rows, int64_t cols, int64_t row_stride, bool transposed, DType t) {
  dnnl_dims_t dims = {rows, cols}, strides = {row_stride, 1};
  if (transposed) strides[0] = 1, strides[1] = row_stride;
  dnnl_memory_desc_t d;
  dnnl_check(dnnl_memory_desc_init_by_strides(&d, 2, dims, dnnl_type(t), strides),
             "memory_desc_init_by_strides");
  return d;
}

using DnnlAttr = std::unique_ptr<dnnl_primitive_attr, DnnlDeleter<dnnl_primitive_attr_destroy>>;
using DnnlPostOps = std::unique_ptr<dnnl_post_ops, DnnlDeleter<dnnl_post_ops_destroy>>;

// The sum, if any, comes first: kResidualArg relies on it.
DnnlAttr attributes(const MatmulKey& key, const dnnl_memory_desc_t& residual) {
  dnnl_primitive_attr_t raw_attr;
  dnnl_check(dnnl_primitive_attr_create(&raw_attr), "primitive_attr_create");
  DnnlAttr attr(raw_attr);
  dnnl_check(dnnl_primitive_attr_set_scratchpad_mode(attr.get(), dnnl_scratchpad_mode_user),
             "set_scratchpad_mode");
  dnnl_post_ops_t raw_post;
  dnnl_check(dnnl_post_ops_create(&raw_post), "post_ops_create");
  DnnlPostOps post(raw_post);
  if (key.sum) dnnl_check(dnnl_post_ops_append_sum(post.get(), float(key.sum)), "post_ops_append_sum");
  if (key.residual)
    dnnl_check(dnnl_post_ops_append_binary(post.get(), dnnl_binary_add, &residual), "post_ops_append_binary");
  dnnl_check(dnnl_primitive_attr_set_post_ops(attr.get(), post.get()), "set_post_ops");
  return attr;
}

DnnlMemory empty_memory(const dnnl_memory_desc_t* desc, dnnl_engine_t engine) {
  dnnl_memory_t raw;
  dnnl_check(dnnl_memory_create(&raw, desc, engine, DNNL_MEMORY_NONE), "memory_create");
  return DnnlMemory(raw);
}

}  // namespace

void dnnl_check(dnnl_status_t status, std::string_view call) {
  if (status == dnnl_success) return;
  constexpr std::string_view kNames[] = {"success",       "out of memory", "invalid arguments",
                                         "unimplemented", "iterator ends", "runtime error",
                                         "not required"};
  run_failed("oneDNN: {} failed: {}", call,
             size_t(status) < std::size(kNames) ? kNames[status] : "unknown status");
}

MatmulKey key_of(const MatmulArgs& p, int threads) {
  auto row_stride = [](const Tensor& t) { return t.shape[0] > 1 ? t.stride[0] : t.shape[1]; };
  bool in_place = p.residual.data == p.c.data && p.residual.stride == p.c.stride;
  return {.m = rows_of(p),
          .n = cols_of(p),
          .k = depth_of(p),
          .lda = row_stride(p.a),
          .ldb = row_stride(p.b),
          .ldc = row_stride(p.c),
          .ldr = p.residual && !in_place ? row_stride(p.residual) : 0,
          .type = p.a.dtype,
          .out = p.c.dtype,
          .trans_a = p.trans_a,
          .trans_b = p.trans_b,
          .bias = bool(p.bias),
          .sum = (p.accumulate ? 1 : 0) + (p.residual && in_place ? 1 : 0),
          .residual = p.residual && !in_place,
          .threads = threads};
}

MatmulPlan::MatmulPlan(const MatmulKey& key, dnnl_engine_t engine) : key_(key), engine_(engine) {
  dnnl_memory_desc_t a = matrix_desc(key.m, key.k, key.lda, key.trans_a, key.type);
  dnnl_memory_desc_t b = matrix_desc(key.k, key.n, key.ldb, key.trans_b, key.type);
  dnnl_memory_desc_t c = matrix_desc(key.m, key.n, key.ldc, false, key.out);
  dnnl_memory_desc_t bias = matrix_desc(1, key.n, key.n, false, key.type);
  dnnl_memory_desc_t residual = matrix_desc(key.m, key.n, std::max(key.ldr, key.n), false, key.out);
  DnnlAttr attr = attributes(key, residual);
  dnnl_matmul_desc_t desc;
  dnnl_check(dnnl_matmul_desc_init(&desc, &a, &b, key.bias ? &bias : nullptr, &c), "matmul_desc_init");
  dnnl_primitive_desc_t raw = nullptr;
  dnnl_status_t status = dnnl_primitive_desc_create(&raw, &desc, attr.get(), engine, nullptr);
  if (status == dnnl_unimplemented) return;
  dnnl_check(status, "primitive_desc_create");
  plan_.reset(raw);
  const dnnl_memory_desc_t* scratch = dnnl_primitive_desc_query_md(raw, dnnl_query_scratchpad_md, 0);
  scratch_bytes_ = scratch ? int64_t(dnnl_memory_desc_get_size(scratch)) : 0;
}

std::string_view MatmulPlan::implementation() const {
  const char* name = "none";
  if (plan_)
    dnnl_check(dnnl_primitive_desc_query(plan_.get(), dnnl_query_impl_info_str, 0, &name), "impl_info_str");
  return name;
}

void MatmulPlan::compile() {
  dnnl_primitive_t raw;
  dnnl_check(dnnl_primitive_create(&raw, plan_.get()), "primitive_create");
  primitive_.reset(raw);
  auto memory = [&](dnnl_query_t what, int index) {
    return empty_memory(dnnl_primitive_desc_query_md(plan_.get(), what, index), engine_);
  };
  a_ = memory(dnnl_query_src_md, 0);
  b_ = memory(dnnl_query_weights_md, 0);
  c_ = memory(dnnl_query_dst_md, 0);
  scratch_ = memory(dnnl_query_scratchpad_md, 0);
  if (key_.bias) bias_ = memory(dnnl_query_weights_md, 1);
  if (key_.residual) {
    dnnl_memory_desc_t d = matrix_desc(key_.m, key_.n, key_.ldr, false, key_.out);
    residual_ = empty_memory(&d, engine_);
  }
}

void MatmulPlan::execute(const MatmulArgs& p, std::byte* scratch, dnnl_stream_t stream) {
  if (!primitive_) compile();
  const int residual_arg = DNNL_ARG_ATTR_MULTIPLE_POST_OP(key_.sum ? 1 : 0) | DNNL_ARG_SRC_1;
  dnnl_exec_arg_t args[6];
  int n = 0;
  auto bind = [&](int arg, const DnnlMemory& memory, std::byte* data) {
    dnnl_check(dnnl_memory_set_data_handle(memory.get(), data), "memory_set_data_handle");
    args[n++] = {arg, memory.get()};
  };
  bind(DNNL_ARG_SRC, a_, p.a.data);
  bind(DNNL_ARG_WEIGHTS, b_, p.b.data);
  bind(DNNL_ARG_DST, c_, p.c.data);
  bind(DNNL_ARG_SCRATCHPAD, scratch_, scratch);
  if (key_.bias) bind(DNNL_ARG_BIAS, bias_, p.bias.data);
  if (key_.residual) bind(residual_arg, residual_, p.residual.data);
  dnnl_check(dnnl_primitive_execute(primitive_.get(), stream, n, args), "primitive_execute");
}

MatmulCache::MatmulCache() {
  dnnl_engine_t engine;
  dnnl_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine_create");
  engine_.reset(engine);
  dnnl_stream_t stream;
  dnnl_check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream_create");
  stream_.reset(stream);
}

size_t MatmulCache::Hash::operator()(const MatmulKey& k) const {
  int64_t flags = int64_t(k.type) | int64_t(k.out) << 8 | int64_t(k.trans_a) << 16 |
                  int64_t(k.trans_b) << 17 | int64_t(k.bias) << 18 | int64_t(k.residual) << 19 |
                  int64_t(k.sum) << 20 | int64_t(k.threads) << 32;
  int64_t words[] = {k.m, k.n, k.k, k.lda, k.ldb, k.ldc, k.ldr, flags};
  return size_t(hash64(words, sizeof words));
}

MatmulPlan& MatmulCache::find(const MatmulKey& key) {
  auto it = plans_.find(key);
  if (it != plans_.end()) return it->second;
  // Training has some fifteen problems; generation meets one per prompt length, so the cache is bounded.
  constexpr size_t kMost = 1024;
  if (plans_.size() >= kMost) plans_.clear();
  return plans_.try_emplace(key, key, engine_.get()).first->second;
}

}  // namespace trireme::cpu
