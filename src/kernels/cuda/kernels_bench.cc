// Speed of every CUDA entry that accepts a bench case: time on the device (CUDA graph of several calls, so that
// launches do not count), FLOP/s and bytes/s from the op's cost, and the fraction of the copy bandwidth of the device.
#include <benchmark/benchmark.h>

#include <algorithm>

#include "ir/facts.h"
#include "kernels/cuda/bench_cases.h"
#include "kernels/cuda/common/fill_random.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/kernel.h"

namespace octet::cuda {
namespace {

constexpr int kCalls = 32;             // in one graph
constexpr double kCopyRate = 4.26e12;  // bytes/s, read + write, measured on one H200
DeviceContext* context() {
  static auto* only = new DeviceContext({.gemm_cache = ""});  // libraries free what is theirs at exit, before or after
  check_cuda(cudaSetDevice(only->device()), "choosing the device");
  return only;
}

class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes) {
    check_cuda(cudaMalloc(&data_, static_cast<size_t>(std::max<int64_t>(bytes, 256))), "allocating");
  }
  DeviceBytes(DeviceBytes&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~DeviceBytes() { cudaFree(data_); }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Bytes that move: every existing input and result once.
double bytes_of(std::span<const Tensor> in, std::span<const Tensor> out) {
  double bytes = 0;
  for (auto list : {in, out})
    for (const Tensor& t : list) bytes += t.data != nullptr ? static_cast<double>(t.type->bytes()) : 0;
  return bytes;
}

// Inputs that are together larger than any cache: calls in a row take turns, as layers of a model do.
constexpr int64_t kInputBytes = int64_t{256} << 20;

void run(benchmark::State& state, const cpu::Case& c, DType dtype, const KernelEntry& entry) {
  const cpu::BuiltCase built = cpu::build_case(c, dtype, false);
  const Node& node = built.node();
  int64_t input_bytes = 0;
  for (Value input : node.inputs) input_bytes += input.exists() ? built.graph.type(input).bytes() : 0;
  const bool in_place = !op_facts(node.op).must_alias.empty();
  const int64_t copies = in_place ? 1 : std::clamp<int64_t>(kInputBytes / std::max<int64_t>(input_bytes, 1), 1, kCalls);
  std::vector<DeviceBytes> buffers;
  buffers.reserve(node.inputs.size() * static_cast<size_t>(copies) + node.results.size() + 1);
  std::vector<Tensor> in, out;
  Philox random(7);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (!node.inputs[i].exists()) {
      in.push_back({});
      continue;
    }
    const TensorType& type = built.graph.type(node.inputs[i]);
    buffers.emplace_back(type.bytes());
    in.push_back({buffers.back().data(), &type});
    if (is_float(type.dtype) && type.shape.elements() > 4096) {
      fill_random(type.dtype, in.back().data, type.shape.elements(), i + 1);
    } else {
      cpu::RefTensor host{type, std::vector<double>(static_cast<size_t>(type.shape.elements()), 1.0)};
      if (c.inputs[i].fill) c.inputs[i].fill(random, host.values);
      std::vector<std::byte> bytes(static_cast<size_t>(type.bytes()));
      cpu::store_tensor(host, bytes.data());
      check_cuda(cudaMemcpy(in.back().data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "uploading");
    }
  }
  for (const TensorType& type : node.results) {
    buffers.emplace_back(type.bytes());
    out.push_back({buffers.back().data(), &type});
  }
  const std::vector<int>& aliases = op_facts(node.op).must_alias;
  for (size_t r = 0; r < aliases.size(); ++r) out[r].data = in[static_cast<size_t>(aliases[r])].data;
  const BoundKernel kernel = entry.bind(*context(), built.graph, node);
  const int64_t scratch = kernel.workspace;
  buffers.emplace_back(scratch);
  cudaStream_t stream = context()->stream();
  KernelArgs args{.in = in,
                  .out = out,
                  .workspace = {static_cast<std::byte*>(buffers.back().data()), static_cast<size_t>(scratch)},
                  .stream = stream};
  state.SetLabel(kernel.label(entry.name, args));
  std::vector<std::vector<Tensor>> inputs = {in};
  for (int64_t copy = 1; copy < copies; ++copy) {
    inputs.push_back(in);
    for (Tensor& tensor : inputs.back()) {
      if (tensor.data == nullptr) continue;
      buffers.emplace_back(tensor.type->bytes());
      check_cuda(cudaMemcpy(buffers.back().data(), tensor.data, static_cast<size_t>(tensor.type->bytes()),
                            cudaMemcpyDeviceToDevice),
                 "copying inputs");
      tensor.data = buffers.back().data();
    }
  }
  kernel(args);
  check_cuda(cudaStreamSynchronize(stream), "warming up");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capturing");
  for (int call = 0; call < kCalls; ++call) {
    args.in = inputs[static_cast<size_t>(call % copies)];
    kernel(args);
  }
  check_cuda(cudaStreamEndCapture(stream, &graph), "capturing");
  check_cuda(cudaGraphInstantiate(&replay, graph, 0), "instantiating");
  check_cuda(cudaEventCreate(&begin), "making an event");
  check_cuda(cudaEventCreate(&end), "making an event");
  check_cuda(cudaGraphLaunch(replay, stream), "warming up");
  std::vector<double> times;
  for (auto _ : state) {
    check_cuda(cudaEventRecord(begin, stream), "recording");
    check_cuda(cudaGraphLaunch(replay, stream), "launching");
    check_cuda(cudaEventRecord(end, stream), "recording");
    check_cuda(cudaEventSynchronize(end), "waiting");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "reading an event");
    times.push_back(1e-3 * static_cast<double>(milliseconds) / kCalls);
    state.SetIterationTime(times.back());
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  const double median = times[times.size() / 2], bytes = bytes_of(in, out);
  state.counters["us"] = 1e6 * median;
  state.counters["TFLOP/s"] = node_cost(built.graph, built.id).flops / median * 1e-12;
  state.counters["GB/s"] = bytes / median * 1e-9;
  state.counters["of_copy"] = bytes / median / kCopyRate;
  cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
}

void register_cases() {
  static const std::vector<cpu::Case> cases = all_bench_cases();
  for (const cpu::Case& c : cases) {
    for (DType dtype : c.dtypes) {
      const cpu::BuiltCase probe = cpu::build_case(c, dtype, false);
      for (const KernelEntry& entry : kernel_entries(c.op)) {
        if (!entry.takes(probe.graph, probe.node())) continue;
        const std::string name = cpu::case_name(c, dtype) + "/" + entry.name;
        benchmark::RegisterBenchmark(name.c_str(),
                                     [&c, dtype, &entry](benchmark::State& state) { run(state, c, dtype, entry); })
            ->UseManualTime()
            ->Iterations(20);
      }
    }
  }
}

}  // namespace
}  // namespace octet::cuda

// Not benchmark_main's: the cases need the op facts, which static initialisation may not have made yet.
int main(int argc, char** argv) {
  std::string why;
  if (octet::cuda::device_count(&why) == 0) {
    fmt::print(stderr, "skipped: {}\n", why);
    return 0;
  }
  octet::cuda::register_cases();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
