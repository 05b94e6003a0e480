// matmul on cuBLASLt: c[M,N] (+)= op(a) op(b) + bias + residual, one call where it can say so.
//
// Row-major matrices are the library's column-major ones transposed: it computes c^T = op(b)^T op(a)^T with
// b first, M and N exchanged; row strides are its leading dims, bias runs along its rows. Sums f32: f32
// operands in full f32 (no TF32), bf16 and f16 on tensor cores; partial sums of a product cut along K meet in
// f32, never in the output's type. accumulate and residual are beta C: beta 1 with C = c or C = residual, 2
// where c is its own residual and accumulates; both at once of two matrices, and what the library has no
// algorithm for (a bias of another type than c), go to matmul_simt.cuh.
//
// Of each problem (sizes, strides, types, epilogue, alignment) the algorithm is chosen once: the heuristic's
// first where runs must be alike (CudaContext::deterministic), else the fastest of its first ones, timed on
// the operands into memory of their own. An algorithm gives the same bits every time, so what was chosen,
// either way, is kept as text (product_choices) and taken again by the same library on the same kind of GPU.
//
// matmul_gelu and its backward take the same way with one more matrix beside c, the library's "auxiliary"
// one: what gelu is applied to, written beside its result or read. Its gelu is the tanh form, of the f32
// sums.
//
// Products of codes (fp8.h) take the same way: k in the rows of both, scales read on the device, sums
// promoted to f32 every 128 of k (no fast accumulation).
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "device/algorithms.h"
#include "device/cuda/fp8.h"
#include "device/cuda/gpu.cuh"
#include "device/cuda/kernel_names.h"
#include "device/cuda/matmul_gelu.h"
#include "device/cuda/matmul_simt.h"

namespace trireme::cuda {
namespace {

// The library, opened when first needed: a program without a GPU starts without it.
struct Library {
// (Each formatting would indent it one step more.)
// clang-format off
#define TRIREME_CUBLASLT(X)                                                                   \
  X(Create) X(Destroy) X(Matmul) X(MatmulDescCreate) X(MatmulDescDestroy)                     \
  X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy)                      \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)        \
  X(MatmulAlgoGetHeuristic) X(MatmulAlgoCheck) X(GetVersion)
// clang-format on
#define TRIREME_FUNCTION(name) decltype(&cublasLt##name) name = nullptr;
  TRIREME_CUBLASLT(TRIREME_FUNCTION)
#undef TRIREME_FUNCTION

  Library() {
    constexpr const char* file = "libcublasLt.so.13";
    void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!handle) run_failed("CUDA: matrix products need {}, which cannot be opened: {}", file, dlerror());
#define TRIREME_FUNCTION(name)                                              \
  name = reinterpret_cast<decltype(name)>(dlsym(handle, "cublasLt" #name)); \
  if (!name) run_failed("CUDA: {} has no function cublasLt{}", file, #name);
    TRIREME_CUBLASLT(TRIREME_FUNCTION)
#undef TRIREME_FUNCTION
#undef TRIREME_CUBLASLT
  }
};
const Library& library() {
  static const Library lt;
  return lt;
}

void check_status(cublasStatus_t s, std::string_view call) {
  if (s != CUBLAS_STATUS_SUCCESS) run_failed("CUDA: cublasLt{} failed with status {}", call, int(s));
}

cudaDataType_t type_of(DType t) {
  return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}
// The largest power of two, up to what kernels load at once, that divides the address: what lies better does
// so by chance or by the layout (a parameter's place in its unit), and would have plans, algorithms and last
// bits of its own.
int64_t alignment_of(const void* p) {
  constexpr uintptr_t kLoaded = 16;  // bytes
  const auto at = reinterpret_cast<uintptr_t>(p) | kLoaded;
  return int64_t(at & (~at + 1));
}
// Of a matrix of one row the stride is never walked.
int64_t leading(const Tensor& t) {
  return std::max(t.stride[0], t.shape[1]);
}

// What beta multiplies.
struct Addend {
  const Tensor* matrix = nullptr;  // null: nothing
  float beta = 0;
};
// What gelu is applied to, [M, N]: written where the product is its input, read where it is its gradient.
struct GeluInput {
  const Tensor* matrix = nullptr;  // null: no gelu
  bool backward = false;
};
// Of operands of 8 bits.
struct BothCodes {
  Codes a, b;
};
static_assert(int(CodeScales::one) == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
              int(CodeScales::vectors) == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F &&
              int(CodeScales::squares) == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
cudaDataType_t type_of(Fp8Format f) {
  return f == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

// None where one call cannot say it.
bool addend_of(const MatmulArgs& a, Addend& to) {
  const bool own = a.residual && a.residual.data == a.c.data && leading(a.residual) == leading(a.c);
  if (a.accumulate && a.residual) {
    if (!own) return false;
    to = {&a.c, 2};
  } else if (a.accumulate) {
    to = {&a.c, 1};
  } else if (a.residual) {
    to = {&a.residual, 1};
  }
  return true;
}

class Plan {
 public:
  // codes: of operands of 8 bits, else null.
  Plan(const MatmulArgs& a, const BothCodes* codes, const GeluInput& gelu, const Addend& add,
       int64_t workspace, cublasLtHandle_t handle)
      : handle_(handle), beta_(add.beta), workspace_(workspace) {
    const Library& lt = library();
    const cudaDataType_t out = type_of(a.c.dtype);
    const cudaDataType_t in_a = codes ? type_of(codes->a.format) : type_of(a.a.dtype),
                         in_b = codes ? type_of(codes->b.format) : type_of(a.b.dtype);
    check_status(lt.MatmulDescCreate(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, a.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, a.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    const auto epilogue = gelu.matrix ? gelu.backward ? CUBLASLT_EPILOGUE_DGELU
                                        : a.bias      ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                                      : CUBLASLT_EPILOGUE_GELU_AUX
                          : a.bias    ? CUBLASLT_EPILOGUE_BIAS
                                      : CUBLASLT_EPILOGUE_DEFAULT;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (gelu.matrix) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading(*gelu.matrix));
    if (a.bias) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(a.bias.dtype));
    }
    if (codes) {
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(0));
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, codes->b.kind);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, codes->a.kind);
    }
    point(a, codes, gelu);
    const Tensor& c = add.matrix ? *add.matrix : a.c;
    first_ = layout(a.b, in_b), second_ = layout(a.a, in_a), c_ = layout(c, out), d_ = layout(a.c, out);

    cublasLtMatmulPreference_t wish = nullptr;
    check_status(lt.MatmulPreferenceCreate(&wish), "MatmulPreferenceCreate");
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      check_status(lt.MatmulPreferenceSetAttribute(wish, what, &value, sizeof value),
                   "MatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(workspace));
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(alignment_of(a.b.data)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(alignment_of(a.a.data)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(alignment_of(c.data)));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(alignment_of(a.c.data)));
    int n = 0;
    const cublasStatus_t s = lt.MatmulAlgoGetHeuristic(handle, desc_, first_, second_, c_, d_, wish,
                                                       int(candidates_.size()), candidates_.data(), &n);
    check_status(lt.MatmulPreferenceDestroy(wish), "MatmulPreferenceDestroy");
    if (s != CUBLAS_STATUS_NOT_SUPPORTED && s != CUBLAS_STATUS_INVALID_VALUE) check_status(s, "heuristic");
    for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; i++)
      if (candidates_[size_t(i)].state == CUBLAS_STATUS_SUCCESS)
        candidates_[size_t(found_++)] = candidates_[size_t(i)];
  }
  Plan(const Plan&) = delete;
  ~Plan() {
    const Library& lt = library();
    for (auto l : {first_, second_, c_, d_}) lt.MatrixLayoutDestroy(l);
    lt.MatmulDescDestroy(desc_);
  }

  int found() const { return found_; }  // algorithms

  // What the heuristic proposed may be refused all the same: then its next. False: none is left.
  bool run(const MatmulArgs& a, const BothCodes* codes, const GeluInput& gelu, const Addend& add,
           const Tensor& scratch, cudaStream_t stream) {
    point(a, codes, gelu);
    while (found_ > 0) {
      const cublasStatus_t s = launch(chosen_, a, add, a.c.data, scratch, stream);
      if (s == CUBLAS_STATUS_SUCCESS) return true;
      if (s != CUBLAS_STATUS_NOT_SUPPORTED) check_status(s, "Matmul");
      std::move(candidates_.begin() + chosen_ + 1, candidates_.begin() + found_,
                candidates_.begin() + chosen_);
      found_--, chosen_ = 0;
    }
    return false;
  }

  // One that was chosen before, unless the library does not know it any more.
  bool take(const cublasLtMatmulAlgo_t& algo) {
    cublasLtMatmulHeuristicResult_t checked{};
    if (library().MatmulAlgoCheck(handle_, desc_, first_, second_, c_, d_, &algo, &checked) !=
            CUBLAS_STATUS_SUCCESS ||
        int64_t(checked.workspaceSize) > workspace_)
      return false;
    candidates_[0] = checked, candidates_[0].algo = algo;
    found_ = std::max(found_, 1), chosen_ = 0, settled_ = true;
    return true;
  }
  // The heuristic's first, for good.
  void settle() { settled_ = true; }
  // Null: the library has none, or there was no way to time them yet.
  const cublasLtMatmulAlgo_t* settled() const {
    return settled_ && found_ > 0 ? &candidates_[size_t(chosen_)].algo : nullptr;
  }

  // The candidate of the least median time, on the operands themselves, its result into memory of its own.
  void choose(const MatmulArgs& a, const Addend& add, const Tensor& scratch, cudaStream_t stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TRIREME_CUDA_CALL(cudaStreamIsCapturing(stream, &capture));
    if (found_ < 2 || capture != cudaStreamCaptureStatusNone) return;
    const int64_t bytes = ((a.c.shape[0] - 1) * leading(a.c) + a.c.shape[1]) * size_of(a.c.dtype);
    void* result = nullptr;
    if (cudaMalloc(&result, size_t(bytes)) != cudaSuccess) {  // no room to try: the heuristic's first
      (void)cudaGetLastError();
      return;
    }
    float least = HUGE_VALF;
    for (int i = 0; i < found_; i++) {
      const float t = time_of(i, a, add, result, scratch, stream);
      if (t < least) least = t, chosen_ = i;
    }
    settled_ = true;
    TRIREME_CUDA_CALL(cudaFree(result));
  }

 private:
  template <class V>
  void set(cublasLtMatmulDescAttributes_t what, const V& value) {
    check_status(library().MatmulDescSetAttribute(desc_, what, &value, sizeof value),
                 "MatmulDescSetAttribute");
  }
  // At what changes from call to call.
  void point(const MatmulArgs& a, const BothCodes* codes, const GeluInput& gelu) {
    if (gelu.matrix) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(gelu.matrix->data));
    if (a.bias) {
      const void* bias = a.bias.data;
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    if (codes) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(codes->b.scales));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(codes->a.scales));
    }
  }
  // The row-major matrix as a column-major one, transposed.
  static cublasLtMatrixLayout_t layout(const Tensor& t, cudaDataType_t type) {
    cublasLtMatrixLayout_t l = nullptr;
    check_status(
        library().MatrixLayoutCreate(&l, type, uint64_t(t.shape[1]), uint64_t(t.shape[0]), leading(t)),
        "MatrixLayoutCreate");
    return l;
  }
  cublasStatus_t launch(int candidate, const MatmulArgs& a, const Addend& add, void* d, const Tensor& scratch,
                        cudaStream_t stream) {
    const float alpha = 1;
    return library().Matmul(handle_, desc_, &alpha, a.b.data, first_, a.a.data, second_, &beta_,
                            add.matrix ? static_cast<const void*>(add.matrix->data) : d, c_, d, d_,
                            &candidates_[size_t(candidate)].algo, scratch.data, size_t(workspace_), stream);
  }
  float time_of(int candidate, const MatmulArgs& a, const Addend& add, void* d, const Tensor& scratch,
                cudaStream_t stream) {
    constexpr int kTimes = 5;
    std::array<float, kTimes> ms;
    // One that the heuristic offers and the library refuses, or that cannot write elsewhere, is not taken.
    if (launch(candidate, a, add, d, scratch, stream) != CUBLAS_STATUS_SUCCESS) return HUGE_VALF;
    cudaEvent_t begin = nullptr, end = nullptr;
    TRIREME_CUDA_CALL(cudaEventCreate(&begin));
    TRIREME_CUDA_CALL(cudaEventCreate(&end));
    for (float& t : ms) {
      TRIREME_CUDA_CALL(cudaEventRecord(begin, stream));
      check_status(launch(candidate, a, add, d, scratch, stream), "Matmul");
      TRIREME_CUDA_CALL(cudaEventRecord(end, stream));
      TRIREME_CUDA_CALL(cudaEventSynchronize(end));
      TRIREME_CUDA_CALL(cudaEventElapsedTime(&t, begin, end));
    }
    TRIREME_CUDA_CALL(cudaEventDestroy(begin));
    TRIREME_CUDA_CALL(cudaEventDestroy(end));
    std::sort(ms.begin(), ms.end());
    return ms[kTimes / 2];
  }

  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, c_ = nullptr, d_ = nullptr;
  float beta_;
  int64_t workspace_;
  std::array<cublasLtMatmulHeuristicResult_t, 8> candidates_{};
  int found_ = 0, chosen_ = 0;
  bool settled_ = false;  // what is chosen is kept
};

static_assert(sizeof(KeptAlgorithms::Words) == sizeof(cublasLtMatmulAlgo_t));
std::string choices_title(const CudaContext& ctx) {
  // Of the name too: one chip comes with memories of several speeds, where other algorithms are the fastest.
  return fmt::format("cublasLt {} on {}, sm_{}{} of {} multiprocessors, {}", library().GetVersion(), ctx.gpu,
                     ctx.major, ctx.minor, ctx.multiprocessors,
                     ctx.deterministic ? "the heuristic's first" : "the fastest");
}

// Of one device: the library's handle and the plans of all problems it has seen.
class Products {
 public:
  explicit Products(const CudaContext& ctx) : kept_(ctx.chosen) {
    check_status(library().Create(&handle_), "Create");
  }
  Products(const Products&) = delete;
  ~Products() {
    plans_.clear();
    library().Destroy(handle_);
  }

  // False: the library has no algorithm. What it refuses after it proposed it is kept no longer.
  bool run(const MatmulArgs& a, const BothCodes* codes, const GeluInput& gelu, const Addend& add,
           const Tensor& scratch, bool deterministic, cudaStream_t stream) {
    auto& [key, plan] = plan_of(a, codes, gelu, add, scratch, deterministic, stream);
    const int proposed = plan->found();
    const bool ran = plan->run(a, codes, gelu, add, scratch, stream);
    if (plan->found() != proposed) keep(key, *plan);
    return ran;
  }

  // Asked after every step.
  const std::string& choices(const CudaContext& ctx) const {
    if (text_.empty() && !kept_.empty()) text_ = text_of(KeptAlgorithms{{{choices_title(ctx), kept_}}});
    return text_;
  }

 private:
  using Key = KeptAlgorithms::Problem;
  using Plans = std::map<Key, std::unique_ptr<Plan>>;

  Plans::value_type& plan_of(const MatmulArgs& a, const BothCodes* codes, const GeluInput& gelu,
                             const Addend& add, const Tensor& scratch, bool deterministic,
                             cudaStream_t stream) {
    const Tensor& c = add.matrix ? *add.matrix : a.c;
    const Key key{
        a.c.shape[0],
        a.c.shape[1],
        a.a.shape[a.trans_a ? 0 : 1],
        leading(a.a),
        leading(a.b),
        leading(a.c),
        leading(c),
        alignment_of(a.a.data),
        alignment_of(a.b.data),
        alignment_of(a.c.data),
        alignment_of(c.data),
        int64_t(a.a.dtype) << 8 | int64_t(a.c.dtype),
        (codes ? int64_t(codes->a.kind) << 8 | int64_t(codes->b.kind) << 4 | int64_t(codes->a.format) << 1 |
                     int64_t(codes->b.format)
               : 0) |
            (gelu.matrix ? leading(*gelu.matrix) << 8 | 2 << 2 | gelu.backward << 2 : 0),
        int64_t(add.beta) << 8 | a.trans_a << 3 | a.trans_b << 2 | bool(a.bias) << 1 | (c.data == a.c.data)};
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      it = plans_.emplace(key, std::make_unique<Plan>(a, codes, gelu, add, scratch.numel(), handle_)).first;
      const auto kept = kept_.find(key);
      if (kept == kept_.end() || !it->second->take(algorithm_of(kept->second)))
        deterministic ? it->second->settle() : it->second->choose(a, add, scratch, stream);
      if (it->second->settled()) keep(key, *it->second);
    }
    return *it;
  }
  void keep(const Key& key, const Plan& plan) {
    if (const cublasLtMatmulAlgo_t* algo = plan.settled())
      std::memcpy(kept_[key].data(), algo, sizeof *algo);
    else
      kept_.erase(key);
    text_.clear();
  }
  static cublasLtMatmulAlgo_t algorithm_of(const KeptAlgorithms::Words& words) {
    cublasLtMatmulAlgo_t algo;
    std::memcpy(&algo, words.data(), sizeof algo);
    return algo;
  }
  cublasLtHandle_t handle_ = nullptr;
  Plans plans_;
  KeptAlgorithms::Of kept_;   // of which some have not come again yet
  mutable std::string text_;  // of kept_; "" = not written yet
};

// False where one call cannot say it, or the library has no algorithm.
bool run_on_library(const MatmulArgs& a, const BothCodes* codes, const GeluInput& gelu, const Tensor& scratch,
                    CudaContext& ctx, cudaStream_t stream) {
  Addend add;
  if (!addend_of(a, add)) return false;
  // The heuristic is told how a, b and c lie, and of no bias: kernels that load 16 bytes of it fault.
  if (a.bias && alignment_of(a.bias.data) < 16) return false;
  if (a.bias && a.bias.dtype != a.c.dtype) return false;  // cublasLt.h: a bias is of the result's type
  if (!ctx.products) ctx.products = std::make_shared<Products>(ctx);
  const Tensor workspace = workspace_in(scratch);
  return static_cast<Products*>(ctx.products.get())
      ->run(a, codes, gelu, add, workspace, ctx.deterministic, stream);
}

bool may_be_auxiliary(const Tensor& t) {
  return size_of(t.dtype) == 2 && leading(t) % 8 == 0 && alignment_of(t.data) >= 16;
}

}  // namespace

std::string product_choices(const CudaContext& ctx) {
  return ctx.products ? static_cast<const Products*>(ctx.products.get())->choices(ctx) : "";
}

std::string take_product_choices(CudaContext& ctx, std::string_view text) {
  KeptAlgorithms all = parse_algorithms(text, "algorithms.txt");
  if (all.by_title.empty()) return "";
  const std::string title = choices_title(ctx);
  const auto own = all.by_title.find(title);
  if (own == all.by_title.end())
    return fmt::format("what it has is of \"{}\", and this is \"{}\"", all.by_title.begin()->first, title);
  ctx.chosen = std::move(own->second);
  return "";
}

void cuda_launch(const MatmulArgs& a, const Tensor& scratch, CudaContext& ctx, cudaStream_t stream) {
  if (a.c.numel() == 0) return;
  const bool by_library = run_on_library(a, nullptr, {}, scratch, ctx, stream);
  ctx.last_kernel = by_library ? kLibraryKernel : kSimtKernel;
  if (!by_library) simt_matmul(a, stream);
}

bool gelu_in_library(const MatmulGeluArgs& a, const Tensor& scratch, CudaContext& ctx, cudaStream_t stream) {
  MatmulArgs product = product_of(a);
  product.c = a.y;
  ctx.last_kernel = kGeluEpilogue;
  return may_be_auxiliary(a.c) && run_on_library(product, nullptr, {&a.c, false}, scratch, ctx, stream);
}
bool gelu_in_library(const MatmulGeluBackwardArgs& a, const Tensor& scratch, CudaContext& ctx,
                     cudaStream_t stream) {
  ctx.last_kernel = kGeluEpilogue;
  return may_be_auxiliary(a.x) && run_on_library(product_of(a), nullptr, {&a.x, true}, scratch, ctx, stream);
}

bool codes_in_library(const MatmulArgs& product, const Codes& a, const Codes& b, const Tensor& scratch,
                      CudaContext& ctx, cudaStream_t stream) {
  const BothCodes codes{a, b};
  return run_on_library(product, &codes, {}, scratch, ctx, stream);
}

}  // namespace trireme::cuda
