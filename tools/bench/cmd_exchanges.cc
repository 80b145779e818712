// octet-bench exchanges: collectives between the GPUs of this machine in replayed graphs, by peer memory and by NCCL:
// alone, and what stands behind an all_reduce in serving.
#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "dist/local_ranks.h"
#include "exec/rank_devices.h"
#include "kernels/cuda/collective/ranks.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/norm/norm.h"

namespace octet {
namespace {

struct Options {
  int32_t ranks = 2;
  std::vector<int64_t> kib = {1, 16, 64, 256, 1024, 4096, 16384, 32768, 65536, 262144};
  int64_t calls = 20, repeats = 10;
  std::string json;
};

constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "sum_add_norm", "sum_add_norm_fused"};
constexpr int64_t kColumns = 8192;  // of the norm behind an all_reduce, as in Llama-3-70B

// y = rms_norm(x + z) of rows of bf16, z = x + z. With pads x is summed up over ranks first.
void add_norm(std::byte* x, std::byte* z, std::byte* y, int64_t bytes, const cuda::PeerPads* pads,
              cudaStream_t stream) {
  const int64_t rows = bytes / 2 / kColumns;
  const cuda::NormForward call{.rows = rows,
                               .cols = kColumns,
                               .eps = 1e-5f,
                               .x = x,
                               .addend = z,
                               .weight = z,  // any numbers
                               .sum = z,
                               .y = y};
  const cuda::NormPlan plan = choose(
      cuda::NormDesc{.rows = rows, .cols = kColumns, .dtype = DType::kBF16, .adds = true}, cuda::device_facts(0));
  pads != nullptr ? launch_norm_rank_sum(call, plan, *pads, stream) : launch_norm(call, plan, stream);
}

// Seconds of a call on rank 0: the median over graphs of so many; 0: there is none. `bytes`: of the whole tensor, bf16.
double measure(const Options& options, const LocalRank& rank, cuda::RankGroup& group, size_t op, int64_t bytes,
               std::byte* x, std::byte* y) {
  using cuda::check_cuda;
  const cuda::PeerPads* pads = op == 4 ? group.pads(bytes) : nullptr;
  if (op == 4 && pads == nullptr) return 0;
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  const int64_t elements = bytes / 2, part = bytes / options.ranks;
  const auto call = [&] {
    if (op == 4) return add_norm(x, y + bytes, y, bytes, pads, stream);
    group.coalesce([&] {
      if (op == 0 || op == 3) group.all_reduce(x, y, elements, DType::kBF16, stream);
      if (op == 1) group.all_gather(x, y, part, stream);
      if (op == 2) group.reduce_scatter(x, y, elements / options.ranks, DType::kBF16, stream);
    });
    if (op == 3) add_norm(y, y + bytes, x, bytes, nullptr, stream);
  };
  call();
  check_cuda(cudaStreamSynchronize(stream), "an exchange");
  barrier(*rank.ranks);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int64_t i = 0; i < options.calls; ++i) call();
  check_cuda(cudaStreamEndCapture(stream, &graph), "capturing");
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "capturing");
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "making an event");
  check_cuda(cudaEventCreate(&end), "making an event");
  std::vector<double> seconds;
  for (int64_t i = 0; i <= options.repeats; ++i) {
    barrier(*rank.ranks);
    check_cuda(cudaGraphLaunch(replay, stream), "an exchange");  // both begin: the next is timed
    check_cuda(cudaEventRecord(begin, stream), "recording an event");
    check_cuda(cudaGraphLaunch(replay, stream), "an exchange");
    check_cuda(cudaEventRecord(end, stream), "recording an event");
    check_cuda(cudaStreamSynchronize(stream), "an exchange");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "reading an event");
    if (i > 0) seconds.push_back(1e-3 * static_cast<double>(milliseconds) / static_cast<double>(options.calls));
  }
  barrier(*rank.ranks);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return median(seconds);
}

// [op][size]
using Times = std::vector<std::vector<double>>;

Times measure_all(const Options& options, bool peer_memory) {
  Mesh mesh;
  mesh[Axis::kTensor] = options.ranks;
  Times times(std::size(kNames));
  const auto work = [&](const LocalRank& rank) {
    const cuda::DeviceGuard guard(rank.device);
    const int64_t largest = *std::ranges::max_element(options.kib) * 1024;
    const int64_t bytes = 3 * largest + 4 * kColumns;  // with a norm's weight
    cuda::check_cuda(cudaSetDevice(rank.device), "choosing the device");
    std::shared_ptr<std::byte> shared = rank.devices->allocate(bytes, "operands");
    if (shared == nullptr) {
      void* memory = nullptr;
      cuda::check_cuda(cudaMalloc(&memory, static_cast<size_t>(bytes)), "allocating operands");
      shared = {static_cast<std::byte*>(memory), [](std::byte* operands) { cudaFree(operands); }};
    }
    std::byte* x = shared.get();
    cuda::check_cuda(cudaMemset(x, 1, static_cast<size_t>(bytes)), "clearing operands");
    cuda::check_cuda(cudaDeviceSynchronize(), "clearing operands");
    cuda::RankGroup& group = rank.devices->group({Axis::kTensor});
    for (size_t op = 0; op < std::size(kNames); ++op)
      for (const int64_t kib : options.kib) {
        const bool rows = op < 3 || kib * 1024 % (2 * kColumns) == 0;
        const double seconds = rows ? measure(options, rank, group, op, kib * 1024, x, x + largest) : 0;
        if (rank.ranks->rank() == 0) times[op].push_back(seconds);
      }
    barrier(*rank.ranks);
  };
  run_local_ranks(mesh, rank_devices(Device::kCuda, peer_memory), work);
  return times;
}

void run_exchanges(const Options& options) {
  const Times peers = measure_all(options, true), nccl = measure_all(options, false);
  nlohmann::json rows;
  fmt::print("{} GPUs of {}; whole tensors of bf16, GB/s of what a rank sends\n", options.ranks,
             cuda::device_facts(0).name);
  fmt::print("{:<18} {:>9} {:>12} {:>8} {:>12} {:>8}\n", "", "KiB", "peers, us", "GB/s", "NCCL, us", "GB/s");
  for (size_t op = 0; op < std::size(kNames); ++op)
    for (size_t i = 0; i < options.kib.size(); ++i) {
      if (peers[op][i] == 0) continue;
      const auto ranks = static_cast<double>(options.ranks);
      const double sent =
          static_cast<double>(options.kib[i]) * 1024 * (ranks - 1) / ranks * (op == 1 || op == 2 ? 1 : 2);
      fmt::print("{:<18} {:>9} {:>12.1f} {:>8.1f} {:>12.1f} {:>8.1f}\n", kNames[op], options.kib[i], 1e6 * peers[op][i],
                 sent / peers[op][i] / 1e9, 1e6 * nccl[op][i], nccl[op][i] > 0 ? sent / nccl[op][i] / 1e9 : 0);
      rows.push_back({{"op", kNames[op]},
                      {"kib", options.kib[i]},
                      {"peer_us", 1e6 * peers[op][i]},
                      {"nccl_us", 1e6 * nccl[op][i]}});
    }
  if (!options.json.empty()) write_file(options.json, rows.dump(1) + "\n");
}

}  // namespace

void add_exchanges_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("exchanges", "Collectives between GPUs of this machine, alone");
  command->add_option("--ranks", options->ranks, "GPUs")->check(CLI::Range(2, 8))->capture_default_str();
  command->add_option("--kib", options->kib, "sizes of the whole tensor")->check(CLI::PositiveNumber)->delimiter(',');
  command->add_option("--calls", options->calls, "in a graph")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--repeats", options->repeats, "timed graphs")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--json", options->json, "write the results to this JSON file");
  command->callback([options] { run_exchanges(*options); });
}

}  // namespace octet
