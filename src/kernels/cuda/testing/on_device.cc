#include "kernels/cuda/testing/on_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>

namespace octet::cuda {
namespace {

constexpr size_t kGuard = 512;  // bytes on either side; keeps the plan's 256-byte alignment
constexpr uint8_t kCanary = 0xC5, kPoison = 0xFF;

class GuardedDeviceBuffer {
 public:
  GuardedDeviceBuffer(size_t bytes, const void* from) : bytes_(bytes) {
    check_cuda(cudaMalloc(&base_, bytes + 2 * kGuard), "allocating a test buffer");
    check_cuda(cudaMemset(base_, kCanary, bytes + 2 * kGuard), "filling a test buffer");
    check_cuda(cudaMemset(data(), kPoison, bytes), "poisoning a test buffer");
    if (from != nullptr) check_cuda(cudaMemcpy(data(), from, bytes, cudaMemcpyHostToDevice), "uploading");
  }
  GuardedDeviceBuffer(GuardedDeviceBuffer&& other) noexcept : base_(other.base_), bytes_(other.bytes_) {
    other.base_ = nullptr;
  }
  ~GuardedDeviceBuffer() { cudaFree(base_); }
  char* data() const { return static_cast<char*>(base_) + kGuard; }

  // Checks the guards; copies the bytes where they are wanted (a workspace of many MiB takes longer than its kernel).
  void download(void* to, const char* what) const {
    std::array<uint8_t, 2 * kGuard> guards;
    check_cuda(cudaMemcpy(guards.data(), base_, kGuard, cudaMemcpyDeviceToHost), "downloading");
    check_cuda(cudaMemcpy(guards.data() + kGuard, data() + bytes_, kGuard, cudaMemcpyDeviceToHost), "downloading");
    check(std::all_of(guards.begin(), guards.end(), [](uint8_t byte) { return byte == kCanary; }), ErrorCode::kInternal,
          "wrote around {} in device memory", what);
    if (to != nullptr) check_cuda(cudaMemcpy(to, data(), bytes_, cudaMemcpyDeviceToHost), "downloading");
  }

 private:
  void* base_ = nullptr;
  size_t bytes_;
};

}  // namespace

DeviceContext* test_context(std::string* why) {
  if (device_count(why) == 0) return nullptr;
  static DeviceContext context({.gemm_cache = ""});
  check_cuda(cudaSetDevice(context.device()), "choosing the device");
  return &context;
}

cpu::BoundKernel on_device(DeviceContext& context, const KernelEntry& entry, const Graph& graph, const Node& node,
                           std::string* ran) {
  const BoundKernel kernel = entry.bind(context, graph, node);
  if (ran != nullptr) *ran = kernel.fallback_kernel != nullptr ? kernel.fallback_kernel : entry.name;
  check(bool(kernel), ErrorCode::kInternal, "{} does not take this node", entry.name);
  return [&context, kernel, scratch = kernel.workspace](const cpu::KernelArgs& args) {
    std::vector<GuardedDeviceBuffer> in_buffers, out_buffers;
    std::vector<Tensor> in, out;
    for (const cpu::Tensor& tensor : args.in) {
      const bool exists = tensor.data != nullptr;
      in_buffers.emplace_back(exists ? static_cast<size_t>(tensor.type->bytes()) : 0, tensor.data);
      in.push_back({exists ? in_buffers.back().data() : nullptr, tensor.type});
    }
    for (const cpu::Tensor& tensor : args.out) {
      const bool exists = tensor.data != nullptr;
      const auto shared = std::find_if(args.in.begin(), args.in.end(),
                                       [&](const cpu::Tensor& t) { return exists && t.data == tensor.data; });
      out_buffers.emplace_back(exists ? static_cast<size_t>(tensor.type->bytes()) : 0, nullptr);
      void* data = exists ? out_buffers.back().data() : nullptr;
      if (shared != args.in.end()) data = in[static_cast<size_t>(shared - args.in.begin())].data;
      out.push_back({data, tensor.type});
    }
    GuardedDeviceBuffer workspace(static_cast<size_t>(scratch), nullptr);
    const std::span<std::byte> scratch_span{reinterpret_cast<std::byte*>(workspace.data()),
                                            static_cast<size_t>(scratch)};
    // Fills and uploads go by the default stream, which the context's own stream does not wait for.
    check_cuda(cudaDeviceSynchronize(), "filling test buffers");
    kernel({.in = in, .out = out, .workspace = scratch_span, .stream = context.stream()});
    check_cuda(cudaGetLastError(), "launching a kernel");
    check_cuda(cudaStreamSynchronize(context.stream()), "running a kernel");
    for (size_t i = 0; i < in.size(); ++i) in_buffers[i].download(args.in[i].data, "an input");
    for (size_t i = 0; i < out.size(); ++i) {
      const bool own = out[i].data == out_buffers[i].data();
      out_buffers[i].download(own ? args.out[i].data : nullptr, "a result");
    }
    workspace.download(nullptr, "the workspace");
  };
}

std::vector<std::vector<std::byte>> run_row(DeviceContext& context, const KernelEntry& entry, const Graph& graph,
                                            const Node& node, const std::vector<cpu::RefTensor>& inputs) {
  std::vector<std::vector<std::byte>> in_bytes, out_bytes;
  std::vector<cpu::Tensor> in, out;
  for (const cpu::RefTensor& tensor : inputs) {
    const bool exists = !tensor.values.empty();
    in_bytes.emplace_back(exists ? static_cast<size_t>(tensor.type.bytes()) : 0);
    if (exists) cpu::store_tensor(tensor, in_bytes.back().data());
    in.push_back({exists ? in_bytes.back().data() : nullptr, &tensor.type});
  }
  for (const TensorType& type : node.results) {
    out_bytes.emplace_back(static_cast<size_t>(type.bytes()));
    out.push_back({out_bytes.back().data(), &type});
  }
  on_device(context, entry, graph, node)({in, out, {}});
  return out_bytes;
}

std::vector<std::vector<std::byte>> run_node(DeviceContext& context, const Graph& graph, const Node& node,
                                             const std::vector<cpu::RefTensor>& inputs) {
  return run_row(context, select_kernel(graph, node), graph, node, inputs);
}

std::vector<std::string> fusion_failures(DeviceContext& context, const cpu::BuiltCase& fusion) {
  const Node& node = fusion.node();
  const auto run = [&](const Graph& graph, const Node& member, const std::vector<cpu::RefTensor>& inputs) {
    return run_node(context, graph, member, inputs);
  };
  std::vector<std::string> failures = cpu::check_fusion(fusion.graph, node, fusion.inputs, run);
  std::vector<cpu::RefTensor> expected;
  const auto results = run(fusion.graph, node, fusion.inputs);
  for (size_t r = 0; r < results.size(); ++r) expected.push_back(cpu::load_tensor(node.results[r], results[r].data()));
  const KernelEntry& entry = select_kernel(fusion.graph, node);
  const auto kernel = on_device(context, entry, fusion.graph, node);
  for (std::string& failure :
       cpu::check_kernel(entry.name, kernel, fusion.graph, node, fusion.inputs, expected, cpu::exact()))
    failures.push_back(std::move(failure));
  return failures;
}

}  // namespace octet::cuda
