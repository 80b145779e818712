// The one file that includes the headers of cudnn-frontend (they take half a minute to compile).
#include "kernels/cuda/attention/cudnn.h"

#include "base/log.h"
#include "kernels/cuda/context.h"

#ifdef OCTET_CUDNN_FRONTEND

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the headers look functions up
}

namespace octet::cuda {
namespace {

namespace fe = cudnn_frontend;

constexpr const char* kName = "libcudnn.so.9";
constexpr size_t kOldest = 91200;  // log-sum-exp written with the strides asked for
constexpr int64_t kLargestDeterministicWorkspace = int64_t{1} << 30;

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Opens the first library that is new enough.
void* open_library() {
  std::string tried;
  std::vector<std::string> paths = python_libraries("cudnn", kName);
  paths.emplace_back(kName);
  for (const std::string& path : paths) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      tried += fmt::format("; {}: {}", path, dlerror());
      continue;
    }
    const auto version = reinterpret_cast<size_t (*)()>(dlsym(library, "cudnnGetVersion"));
    if (version != nullptr && version() >= kOldest) return library;
    tried += fmt::format("; {} is version {}", path, version != nullptr ? version_text(version()) : "unknown");
    dlclose(library);
  }
  fail(ErrorCode::kUnsupported,
       "cuDNN {} or newer (9.19 is known to work) was not found{}; install it, for example with pip install "
       "nvidia-cudnn-cu13",
       version_text(kOldest), tried);
}

void check_frontend(fe::error_t error, const char* what) {
  check(error.is_good(), ErrorCode::kInternal, "cuDNN: {}: {}", what, error.get_message());
}
void check_cudnn(cudnnStatus_t status, const char* what) {
  check(status == CUDNN_STATUS_SUCCESS, ErrorCode::kInternal, "cuDNN: {}: {}", what,
        fe::detail::get_error_string(status));
}

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kDo,
  kDq,
  kDk,
  kDv,
  kLengthsQ,
  kLengthsKv,
  kQStarts,
  kKvStarts,
  kStatsStarts,
  kSeed,
  kOffset
};

using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

class Plan : public CudnnPlan {
 public:
  Plan(cudnnHandle_t handle, const CudnnProblem& problem) : handle_(handle), problem_(problem) {}

  fe::error_t build() {
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (problem_.ragged) {
      lengths_q_ = integers("lengths_q", kLengthsQ, problem_.batch);
      lengths_kv_ = integers("lengths_kv", kLengthsKv, problem_.batch);
      q_starts_ = integers("q_starts", kQStarts, problem_.batch + 1);
      kv_starts_ = integers("kv_starts", kKvStarts, problem_.batch + 1);
      stats_starts_ = integers("stats_starts", kStatsStarts, problem_.batch + 1);
    }
    if (problem_.dropout > 0) {
      seed_ = integers("seed", kSeed, 1, fe::DataType_t::INT64);
      offset_ = integers("offset", kOffset, 1, fe::DataType_t::INT64);
    }
    if (problem_.backward) {
      add_backward();
    } else {
      add_forward();
    }
    auto error = graph_.build(handle_, {fe::HeurMode_t::A});
    if (error.is_good()) error = graph_.get_workspace_size(workspace_);
    return error;
  }
  int64_t workspace_bytes() const override { return workspace_; }

  void run(const CudnnBuffers& b, void* workspace, cudaStream_t stream) override {
    const auto in = [](const void* data) { return const_cast<void*>(data); };
    std::unordered_map<int64_t, void*> pack = {
        {kQ, in(b.q)}, {kK, in(b.k)}, {kV, in(b.v)}, {kO, b.out}, {kStats, b.stats}};
    if (problem_.backward) pack.insert({{kDo, in(b.dout)}, {kDq, b.dq}, {kDk, b.dk}, {kDv, b.dv}});
    if (problem_.ragged) {
      pack.insert({{kLengthsQ, in(b.lengths)},
                   {kLengthsKv, in(b.lengths)},
                   {kQStarts, in(b.q_starts)},
                   {kKvStarts, in(b.kv_starts)},
                   {kStatsStarts, in(b.stats_starts)}});
    }
    if (problem_.dropout > 0) pack.insert({{kSeed, in(b.draw)}, {kOffset, in(b.draw + 1)}});
    check_cudnn(fe::detail::set_stream(handle_, stream), "choosing the stream");
    check_frontend(graph_.execute(handle_, pack, workspace), "running attention");
  }

 private:
  Tensor integers(const char* name, int64_t uid, int64_t count, fe::DataType_t type = fe::DataType_t::INT32) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(type));
  }
  // [batch, heads, length, dim] over rows [tokens, heads dim].
  void shape_heads(fe::graph::Tensor_attributes& tensor, int64_t heads, const Tensor& starts) const {
    tensor.set_dim({problem_.batch, heads, problem_.length, problem_.dim})
        .set_stride({problem_.length * heads * problem_.dim, problem_.dim, heads * problem_.dim, 1});
    if (problem_.ragged) tensor.set_ragged_offset(starts);
  }
  Tensor heads_input(const char* name, int64_t uid, int64_t heads, const Tensor& starts) {
    fe::graph::Tensor_attributes tensor;
    tensor.set_name(name).set_uid(uid);
    shape_heads(tensor, heads, starts);
    return graph_.tensor(tensor);
  }
  void heads_output(const Tensor& tensor, int64_t uid, int64_t heads, const Tensor& starts) const {
    tensor->set_output(true).set_uid(uid);
    shape_heads(*tensor, heads, starts);
  }
  // [batch, heads, length, 1]: of rows [tokens, heads], or packed where a dense log-sum-exp is read.
  void shape_stats(fe::graph::Tensor_attributes& tensor, bool packed) const {
    const int64_t heads = problem_.heads, length = problem_.length;
    tensor.set_uid(kStats).set_data_type(fe::DataType_t::FLOAT).set_dim({problem_.batch, heads, length, 1});
    if (packed) {
      tensor.set_stride({heads * length, length, 1, 1});
    } else {
      tensor.set_stride({length * heads, 1, heads, 1});
    }
    if (problem_.ragged) tensor.set_ragged_offset(stats_starts_);
  }
  // Causal, windows, padding, dropout.
  template <typename Attributes>
  void set_masks(Attributes& attributes) const {
    attributes.set_attn_scale(problem_.scale);
    if (problem_.causal)
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    if (problem_.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(problem_.window));
    if (problem_.ragged) attributes.set_padding_mask(true).set_seq_len_q(lengths_q_).set_seq_len_kv(lengths_kv_);
    if (problem_.dropout > 0) attributes.set_dropout(problem_.dropout, seed_, offset_);
  }

  void add_forward() {
    const Tensor q = heads_input("q", kQ, problem_.heads, q_starts_);
    const Tensor k = heads_input("k", kK, problem_.kv_heads, kv_starts_);
    const Tensor v = heads_input("v", kV, problem_.kv_heads, kv_starts_);
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
    set_masks(attributes);
    const auto [out, stats] = graph_.sdpa(q, k, v, attributes);
    heads_output(out, kO, problem_.heads, q_starts_);
    stats->set_output(true);
    shape_stats(*stats, false);
  }
  void add_backward() {
    const Tensor q = heads_input("q", kQ, problem_.heads, q_starts_);
    const Tensor k = heads_input("k", kK, problem_.kv_heads, kv_starts_);
    const Tensor v = heads_input("v", kV, problem_.kv_heads, kv_starts_);
    const Tensor out = heads_input("out", kO, problem_.heads, q_starts_);
    const Tensor dout = heads_input("dout", kDo, problem_.heads, q_starts_);
    fe::graph::Tensor_attributes stats;
    stats.set_name("lse");
    shape_stats(stats, !problem_.ragged);
    auto attributes = fe::graph::SDPA_backward_attributes().set_name("attention_grad");
    set_masks(attributes);
    attributes.set_deterministic_algorithm(problem_.deterministic);
    if (problem_.ragged) {
      attributes.set_max_total_seq_len_q(problem_.tokens).set_max_total_seq_len_kv(problem_.tokens);
    }
    const auto [dq, dk, dv] = graph_.sdpa_backward(q, k, v, out, dout, graph_.tensor(stats), attributes);
    heads_output(dq, kDq, problem_.heads, q_starts_);
    heads_output(dk, kDk, problem_.kv_heads, kv_starts_);
    heads_output(dv, kDv, problem_.kv_heads, kv_starts_);
  }

  cudnnHandle_t handle_;
  CudnnProblem problem_;
  fe::graph::Graph graph_;
  Tensor lengths_q_, lengths_kv_, q_starts_, kv_starts_, stats_starts_, seed_, offset_;
  int64_t workspace_ = 0;
};

}  // namespace

struct CudnnHandle::State {
  cudnnHandle_t handle = nullptr;
  std::map<CudnnProblem, std::unique_ptr<Plan>> plans;  // null: refused
};

CudnnHandle::CudnnHandle(DeviceContext&) : state_(std::make_unique<State>()) {
  static std::mutex opening;  // the library is the process's
  {
    std::lock_guard lock(opening);
    if (fe::cudnn_dlhandle == nullptr) fe::cudnn_dlhandle = open_library();
  }
  check_cudnn(fe::detail::create_handle(&state_->handle), "making a handle");
}

CudnnHandle::~CudnnHandle() {
  state_->plans.clear();
  fe::detail::destroy_handle(state_->handle);
}

CudnnPlan* CudnnHandle::attention(const CudnnProblem& problem) {
  auto [at, added] = state_->plans.try_emplace(problem);
  if (added) {
    auto plan = std::make_unique<Plan>(state_->handle, problem);
    auto error = plan->build();
    std::string why = error.get_message();
    if (error.is_good() && problem.deterministic && plan->workspace_bytes() > kLargestDeterministicWorkspace) {
      why = fmt::format("deterministic, it needs {} MiB of workspace", plan->workspace_bytes() >> 20);
    } else if (error.is_good()) {
      at->second = std::move(plan);
    }
    if (at->second == nullptr) {
      log_info("attention of {} heads of {} runs on our own kernels: cuDNN: {}", problem.heads, problem.dim, why);
    }
  }
  return at->second.get();
}

}  // namespace octet::cuda

#else

namespace octet::cuda {

struct CudnnHandle::State {};
CudnnHandle::CudnnHandle(DeviceContext&) {
  fail(ErrorCode::kUnsupported,
       "built without the headers of cuDNN or cudnn-frontend: run scripts/setup.sh cuda and configure again");
}
CudnnHandle::~CudnnHandle() = default;
CudnnPlan* CudnnHandle::attention(const CudnnProblem&) { return nullptr; }

}  // namespace octet::cuda

#endif
