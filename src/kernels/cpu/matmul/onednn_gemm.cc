// The only file that uses oneDNN: dlopen of libdnnl.so.2, matmul primitives on row-major layouts.
#include "kernels/cpu/matmul/onednn_gemm.h"

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <dlfcn.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <memory>
#include <string>

#include "base/error.h"
#include "base/threads.h"

namespace octet::cpu {
namespace {

// clang-format off
#define OCTET_ONEDNN_FUNCTIONS(X) \
  X(version) X(engine_create) X(stream_create) X(memory_desc_init_by_strides) X(matmul_desc_init) \
  X(primitive_attr_create) X(primitive_attr_destroy) X(primitive_attr_set_post_ops) \
  X(primitive_attr_set_scratchpad_mode) X(post_ops_create) X(post_ops_destroy) X(post_ops_append_sum) \
  X(primitive_desc_create) X(primitive_desc_destroy) X(primitive_desc_query_md) X(memory_desc_get_size) \
  X(primitive_create) X(primitive_destroy) X(primitive_execute) X(memory_create) X(memory_destroy) \
  X(memory_set_data_handle)
// clang-format on

// Not under sanitizers, which report false races and leaks in the uninstrumented library.
#ifdef OCTET_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The library's functions without their prefix, an engine and a stream; `loaded` is false if it is absent.
struct Library {
#define OCTET_MEMBER(name) decltype(&dnnl_##name) name = nullptr;
  OCTET_ONEDNN_FUNCTIONS(OCTET_MEMBER)
#undef OCTET_MEMBER
  dnnl_engine_t engine = nullptr;
  dnnl_stream_t stream = nullptr;
  bool loaded = false;
  std::string version_text;

  Library() {
    if (kSanitized) return;
    void* handle = dlopen("libdnnl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return;
    bool complete = true;
#define OCTET_LOAD(name) \
  complete = (name = reinterpret_cast<decltype(name)>(dlsym(handle, "dnnl_" #name))) != nullptr && complete;
    OCTET_ONEDNN_FUNCTIONS(OCTET_LOAD)
#undef OCTET_LOAD
    // Structs differ between major versions: only the version compiled against.
    if (!complete || version()->major != DNNL_VERSION_MAJOR) return;
    loaded = engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
             stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
    version_text = fmt::format("{}.{}.{}", version()->major, version()->minor, version()->patch);
  }
};

const Library& library() {
  static const Library instance;
  return instance;
}

dnnl_data_type_t data_type(DType dtype) { return dtype == DType::kF32 ? dnnl_f32 : dnnl_bf16; }

dnnl_memory_desc_t matrix(int64_t rows, int64_t cols, DType dtype, bool transposed) {
  const dnnl_dims_t dims = {rows, cols};
  const dnnl_dims_t strides = {transposed ? 1 : cols, transposed ? rows : 1};
  dnnl_memory_desc_t desc{};
  library().memory_desc_init_by_strides(&desc, 2, dims, data_type(dtype), strides);
  return desc;
}

// oneDNN takes its thread count from OpenMP's setting for the calling thread.
void share_thread_count() {
  if (omp_get_max_threads() != thread_count()) omp_set_num_threads(thread_count());
}

// Scratch limit of a primitive: the workspace without converted operands.
constexpr size_t kMaxScratch = size_t{16} << 20;

class Primitive {
 public:
  explicit Primitive(const OnednnGemmSpec& spec) : spec_(spec) {}
  Primitive(const Primitive&) = delete;
  Primitive& operator=(const Primitive&) = delete;
  ~Primitive() {
    const Library& lib = library();
    for (dnnl_memory_t memory : {a_, b_, bias_, out_, scratch_}) {
      if (memory != nullptr) lib.memory_destroy(memory);
    }
    if (primitive_ != nullptr) lib.primitive_destroy(primitive_);
  }

  bool create() {
    const Library& lib = library();
    share_thread_count();
    const auto a = matrix(spec_.m, spec_.k, spec_.operands, spec_.trans_a);
    const auto b = matrix(spec_.k, spec_.n, spec_.operands, spec_.trans_b);
    const auto bias = matrix(1, spec_.n, spec_.bias_dtype, false);
    const auto out = matrix(spec_.m, spec_.n, spec_.out, false);
    dnnl_matmul_desc_t desc{};
    if (lib.matmul_desc_init(&desc, &a, &b, spec_.bias ? &bias : nullptr, &out) != dnnl_success) return false;
    dnnl_primitive_attr_t attributes = nullptr;
    dnnl_post_ops_t post_ops = nullptr;
    lib.primitive_attr_create(&attributes);
    lib.primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (spec_.accumulate) {
      lib.post_ops_create(&post_ops);
      lib.post_ops_append_sum(post_ops, 1.0f);
      lib.primitive_attr_set_post_ops(attributes, post_ops);
      lib.post_ops_destroy(post_ops);
    }
    dnnl_primitive_desc_t primitive_desc = nullptr;
    bool done = lib.primitive_desc_create(&primitive_desc, &desc, attributes, lib.engine, nullptr) == dnnl_success;
    lib.primitive_attr_destroy(attributes);
    if (!done) return false;
    const dnnl_memory_desc_t* scratch = lib.primitive_desc_query_md(primitive_desc, dnnl_query_scratchpad_md, 0);
    scratch_bytes_ = lib.memory_desc_get_size(scratch);
    auto make = [&](dnnl_memory_t& memory, const dnnl_memory_desc_t& layout) {
      done = done && lib.memory_create(&memory, &layout, lib.engine, DNNL_MEMORY_NONE) == dnnl_success;
    };
    make(a_, a);
    make(b_, b);
    make(out_, out);
    if (spec_.bias) make(bias_, bias);
    if (scratch_bytes_ > 0) make(scratch_, *scratch);
    done = done && lib.primitive_create(&primitive_, primitive_desc) == dnnl_success;
    lib.primitive_desc_destroy(primitive_desc);
    return done && scratch_bytes_ <= kMaxScratch;
  }

  void run(const void* a, const void* b, const void* bias, void* out, std::span<std::byte> scratch) {
    const Library& lib = library();
    share_thread_count();
    check(scratch.size() >= scratch_bytes_, ErrorCode::kInternal, "oneDNN matmul wants {} bytes of scratch, has {}",
          scratch_bytes_, scratch.size());
    dnnl_exec_arg_t args[5];
    int count = 0;
    auto bind = [&](int argument, dnnl_memory_t memory, const void* data) {
      if (memory == nullptr) return;
      lib.memory_set_data_handle(memory, const_cast<void*>(data));
      args[count++] = {argument, memory};
    };
    bind(DNNL_ARG_SRC, a_, a);
    bind(DNNL_ARG_WEIGHTS, b_, b);
    bind(DNNL_ARG_BIAS, bias_, bias);
    bind(DNNL_ARG_DST, out_, out);
    bind(DNNL_ARG_SCRATCHPAD, scratch_, scratch.data());
    const dnnl_status_t status = lib.primitive_execute(primitive_, lib.stream, count, args);
    check(status == dnnl_success, ErrorCode::kInternal, "oneDNN matmul [{}, {}] x [{}, {}] failed with status {}",
          spec_.m, spec_.k, spec_.k, spec_.n, static_cast<int>(status));
  }

 private:
  OnednnGemmSpec spec_;
  dnnl_primitive_t primitive_ = nullptr;
  dnnl_memory_t a_ = nullptr, b_ = nullptr, bias_ = nullptr, out_ = nullptr, scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

}  // namespace

OnednnGemm make_onednn_gemm(const OnednnGemmSpec& spec) {
  if (!library().loaded) return nullptr;
#ifndef __AVX512F__
  // Without AVX-512 oneDNN emulates bf16 slowly or refuses it.
  if (spec.operands == DType::kBF16) return nullptr;
#endif
  auto primitive = std::make_shared<Primitive>(spec);
  if (!primitive->create()) return nullptr;
  return [primitive](const void* a, const void* b, const void* bias, void* out, std::span<std::byte> scratch) {
    primitive->run(a, b, bias, out, scratch);
  };
}

const char* onednn_version() { return library().version_text.c_str(); }

}  // namespace octet::cpu
#else
namespace octet::cpu {
OnednnGemm make_onednn_gemm(const OnednnGemmSpec&) { return nullptr; }
const char* onednn_version() { return ""; }
}  // namespace octet::cpu
#endif
