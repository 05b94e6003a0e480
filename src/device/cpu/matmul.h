// Matrix products on oneDNN: one primitive per distinct problem, kept for the device's life.
#pragma once
#include <dnnl.h>

#include <memory>
#include <unordered_map>

#include "device/cpu/launch.h"
#include "device/cpu/product_sizes.h"

namespace trireme::cpu {

// Everything that a primitive is made for; pointers and values are not part of it.
struct MatmulKey {
  int64_t m, n, k;
  int64_t lda, ldb, ldc, ldr;  // row strides in elements; of a matrix of one row its columns
  DType type, out;             // of a, b and bias; of c and residual
  bool trans_a, trans_b, bias;
  int sum;        // how often c itself is added: accumulate, and the residual when it is c
  bool residual;  // another matrix than c
  int threads;
  bool operator==(const MatmulKey&) const = default;
};
MatmulKey key_of(const MatmulArgs&, int threads);

// oneDNN's handles, destroyed by its own functions.
template <auto destroy>
struct DnnlDeleter {
  template <class T>
  void operator()(T* p) const {
    destroy(p);
  }
};
using DnnlEngine = std::unique_ptr<dnnl_engine, DnnlDeleter<dnnl_engine_destroy>>;
using DnnlStream = std::unique_ptr<dnnl_stream, DnnlDeleter<dnnl_stream_destroy>>;
using DnnlPlan = std::unique_ptr<dnnl_primitive_desc, DnnlDeleter<dnnl_primitive_desc_destroy>>;
using DnnlPrimitive = std::unique_ptr<dnnl_primitive, DnnlDeleter<dnnl_primitive_destroy>>;
using DnnlMemory = std::unique_ptr<dnnl_memory, DnnlDeleter<dnnl_memory_destroy>>;

// Throws when oneDNN reports a failure, naming the call.
void dnnl_check(dnnl_status_t, std::string_view call);

// One problem. Planned when first asked about (meta stops there), compiled at the first launch.
class MatmulPlan {
 public:
  MatmulPlan(const MatmulKey&, dnnl_engine_t);
  // False where oneDNN has no implementation for the types on this processor.
  bool supported() const { return plan_ != nullptr; }
  int64_t scratch_bytes() const { return scratch_bytes_; }
  std::string_view implementation() const;
  void execute(const MatmulArgs&, std::byte* scratch, dnnl_stream_t);

 private:
  void compile();
  const MatmulKey key_;
  dnnl_engine_t engine_;
  DnnlPlan plan_;
  DnnlPrimitive primitive_;
  DnnlMemory a_, b_, c_, bias_, residual_, scratch_;
  int64_t scratch_bytes_ = 0;
};

// The plans of one device. Lookups in steady state allocate nothing.
class MatmulCache {
 public:
  MatmulCache();
  MatmulPlan& find(const MatmulKey&);
  dnnl_stream_t stream() const { return stream_.get(); }

 private:
  struct Hash {
    size_t operator()(const MatmulKey&) const;
  };
  DnnlEngine engine_;
  DnnlStream stream_;
  std::unordered_map<MatmulKey, MatmulPlan, Hash> plans_;
};

// The product in f32 blocks, for processors on which oneDNN refuses bf16 (matmul_in_f32.cc).
int64_t matmul_in_f32_scratch_bytes(const MatmulArgs&, const Context&, MatmulCache&);
void matmul_in_f32(const MatmulArgs&, std::byte* scratch, const Context&, MatmulCache&);

// c = a b^T of few rows of a, bound by reading b once (matmul_few_rows.cc).
inline constexpr int64_t kFewRows = 32;
bool has_few_rows(const MatmulArgs&);
int64_t matmul_few_rows_scratch_bytes(const MatmulArgs&);
void matmul_few_rows(const MatmulArgs&, std::byte* scratch, const Context&);

// launch() and scratch_bytes() with a cache at hand, also for the parts that matmul_in_f32 is made of.
int64_t matmul_scratch_bytes(const MatmulArgs&, const Context&, MatmulCache&);
void matmul(const MatmulArgs&, std::byte* scratch, const Context&, MatmulCache&);

}  // namespace trireme::cpu
