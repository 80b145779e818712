#include "kernels/cuda/matmul/tuning.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "kernels/cuda/common/fill_random.h"

namespace octet::cuda {
namespace {

constexpr std::string_view kHeader = "octet gemm choices, format 1";
constexpr int kCandidates = 16, kRounds = 5;
constexpr int kList = 2;             // of candidates: choices made among others are measured again
constexpr double kPruneRatio = 1.5;  // candidates this many times slower than the best in the first round are dropped
constexpr float kRoundMs = 0.2f;     // short products are repeated until a measurement lasts this long
constexpr int kMaxRepeats = 32;      // of them
constexpr int64_t kFileLimit = int64_t{16} << 20;

std::string cache_file(const std::string& setting) {
  if (setting != "auto") return setting;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/octet/gemm_choices.txt";
  return home != nullptr && *home == '/' ? std::string(home) + "/.cache/octet/gemm_choices.txt" : "";
}

// Device memory for one timing; null when there is none left.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    if (cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 256))) != cudaSuccess) {
      cudaGetLastError();
      data_ = nullptr;
    }
  }
  Scratch(DType dtype, int64_t elements, uint64_t seed) : Scratch(elements * dtype_bytes(dtype)) {
    if (data_ != nullptr) fill_random(dtype, data_, elements, seed);
  }
  Scratch(const Scratch&) = delete;
  ~Scratch() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

int64_t scale_count(GemmScaling scaling, int64_t outer, int64_t k) {
  const int64_t blocks = (k + 127) / 128;
  if (!scaling) return 0;
  switch (*scaling) {
    case ScaleLayout::kTensor: return 1;
    case ScaleLayout::kRow: return outer;
    case ScaleLayout::kRow128: return outer * blocks;
    case ScaleLayout::kTile128: return (outer + 127) / 128 * ((blocks + 3) / 4 * 4);
    default: return 0;  // of integer codes
  }
}

// Operands of random data and the clock.
class Bench {
 public:
  Bench(Gemm& gemm, cudaStream_t stream)
      : gemm_(gemm),
        stream_(stream),
        a_(gemm.spec().a, gemm.spec().m * gemm.spec().k, 1),
        b_(gemm.spec().b, gemm.spec().n * gemm.spec().k, 2),
        out_(gemm.spec().out, gemm.spec().m * gemm.spec().n, 3),
        bias_(gemm.spec().bias.value_or(DType::kF32), gemm.spec().bias ? gemm.spec().n : 1, 4),
        scale_a_(DType::kF32, scale_count(gemm.spec().scaling_a, gemm.spec().m, gemm.spec().k), 5),
        scale_b_(DType::kF32, scale_count(gemm.spec().scaling_b, gemm.spec().n, gemm.spec().k), 6),
        workspace_(kGemmWorkspace) {
    check_cuda(cudaEventCreate(&begin_), "making an event");
    check_cuda(cudaEventCreate(&end_), "making an event");
    check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "filling operands");
  }
  ~Bench() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  bool ready() const {
    for (const Scratch* scratch : {&a_, &b_, &out_, &bias_, &scale_a_, &scale_b_, &workspace_}) {
      if (scratch->data() == nullptr) return false;
    }
    return true;
  }

  // Milliseconds of one call, by `repeats` of them in a row.
  float time(const cublasLtMatmulAlgo_t& algorithm, int repeats) {
    gemm_.use(algorithm);
    const GemmOperands operands{.a = a_.data(),
                                .b = b_.data(),
                                .scale_a = static_cast<const float*>(scale_a_.data()),
                                .scale_b = static_cast<const float*>(scale_b_.data()),
                                .c = out_.data(),
                                .bias = bias_.data(),
                                .out = out_.data(),
                                .workspace = workspace_.data()};
    check_cuda(cudaEventRecord(begin_, stream_), "recording");
    for (int i = 0; i < repeats; ++i) gemm_.run(operands, stream_);
    check_cuda(cudaEventRecord(end_, stream_), "recording");
    check_cuda(cudaEventSynchronize(end_), "timing a product");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "timing a product");
    return milliseconds / static_cast<float>(repeats);
  }

 private:
  Gemm& gemm_;
  cudaStream_t stream_;
  Scratch a_, b_, out_, bias_, scale_a_, scale_b_, workspace_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

struct Candidate {
  size_t index;
  int repeats;
  std::vector<float> times;
  float median() const {
    std::vector<float> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

bool parse_algorithm(std::string_view hex, cublasLtMatmulAlgo_t& algorithm) {
  if (hex.size() != 16 * std::size(algorithm.data)) return false;
  for (size_t word = 0; word < std::size(algorithm.data); ++word) {
    const char* begin = hex.data() + 16 * word;
    const auto [end, error] = std::from_chars(begin, begin + 16, algorithm.data[word], 16);
    if (error != std::errc{} || end != begin + 16) return false;
  }
  return true;
}

}  // namespace

std::map<std::string, cublasLtMatmulAlgo_t> read_gemm_choices(std::string_view text, int& damaged) {
  const auto next_line = [&text] {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
  };
  check(next_line() == kHeader, ErrorCode::kCorrupt, "the first line is not '{}'", kHeader);
  std::map<std::string, cublasLtMatmulAlgo_t> choices;
  damaged = 0;
  while (!text.empty()) {
    const std::string_view line = next_line();
    const size_t equals = line.rfind(" = ");
    cublasLtMatmulAlgo_t algorithm;
    if (equals != std::string_view::npos && equals > 0 && parse_algorithm(line.substr(equals + 3), algorithm)) {
      choices.emplace(line.substr(0, equals), algorithm);
    } else {
      ++damaged;
    }
  }
  return choices;
}

std::string write_gemm_choices(const std::map<std::string, cublasLtMatmulAlgo_t>& choices) {
  std::string text = std::string(kHeader) + "\n";
  for (const auto& [key, algorithm] : choices) {
    text += key + " = ";
    for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
    text += "\n";
  }
  return text;
}

GemmTuning::GemmTuning(DeviceContext& context) : context_(context) {
  prefix_ = fmt::format("{}, {} SMs, cuBLASLt {}, list {}: ", context.device_name(), context.sm_count(),
                        context.library<CublasLt>().version(), kList);
  if (!context.options().deterministic) file_ = cache_file(context.options().gemm_cache);
  load();
}

void GemmTuning::load() {
  if (file_.empty() || !path_exists(file_)) return;
  try {
    int damaged = 0;
    // What this process has measured stands.
    for (auto& choice : read_gemm_choices(read_file(file_, kFileLimit), damaged)) choices_.insert(std::move(choice));
    if (damaged > 0) log_warning("{}: {} damaged lines are left out; those products are timed again", file_, damaged);
  } catch (const Error& error) {
    log_warning("{} is not used for choices of matrix products and left as it is: {}", file_, error.what());
    file_.clear();
  }
}

// Several processes and contexts may do this at once: each merges what the others have written, and renames a file of
// its own.
void GemmTuning::save() {
  if (unsaved_ == 0) return;
  log_debug("{} matrix products timed: {:.3f} s", unsaved_, seconds_);
  unsaved_ = 0, seconds_ = 0;
  load();
  if (file_.empty()) return;
  const std::string own = fmt::format("{}.{}.{}", file_, getpid(), fmt::ptr(this));
  try {
    make_folders(parent_folder(file_));
    write_file(own, write_gemm_choices(choices_));
    rename_path(own, file_);
  } catch (const Error& error) {
    log_warning("choices of matrix products are not kept for later runs: {}", error.what());
    file_.clear();
  }
}

std::optional<cublasLtMatmulAlgo_t> GemmTuning::choose(Gemm& gemm) {
  const std::string key = prefix_ + gemm.spec().key();
  if (const auto kept = choices_.find(key); kept != choices_.end()) {
    if (gemm.accepts(kept->second)) return kept->second;
    choices_.erase(kept);
  }
  const std::vector<cublasLtMatmulAlgo_t> candidates = gemm.candidates(kCandidates);
  if (candidates.empty()) return std::nullopt;
  if (context_.options().deterministic || !context_.options().tune_gemms) return candidates[0];
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<cublasLtMatmulAlgo_t> best = fastest(gemm, candidates);
  if (!best) return candidates[0];  // no memory to time in: not worth keeping
  choices_[key] = *best;
  ++unsaved_;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return best;
}

// Rounds over all candidates, so that a drift of the clock meets them alike.
std::optional<cublasLtMatmulAlgo_t> GemmTuning::fastest(Gemm& gemm,
                                                        const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  Bench bench(gemm, context_.stream());
  if (!bench.ready()) return std::nullopt;
  std::vector<Candidate> candidates;
  float best = 0;
  for (size_t i = 0; i < algorithms.size(); ++i) {
    bench.time(algorithms[i], 1);  // loads the kernel
    const float once = bench.time(algorithms[i], 1);
    const int repeats = static_cast<int>(kRoundMs / std::max(once, 1e-3f)) + 1;
    candidates.push_back({i, std::min(repeats, kMaxRepeats), {once}});
    best = candidates.size() == 1 ? once : std::min(best, once);
  }
  std::erase_if(candidates, [&](const Candidate& c) { return c.times[0] > kPruneRatio * best; });
  for (Candidate& candidate : candidates) candidate.times.clear();
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : candidates)
      candidate.times.push_back(bench.time(algorithms[candidate.index], candidate.repeats));
  }
  const auto winner = std::min_element(candidates.begin(), candidates.end(),
                                       [](const Candidate& x, const Candidate& y) { return x.median() < y.median(); });
  return algorithms[winner->index];
}

}  // namespace octet::cuda
