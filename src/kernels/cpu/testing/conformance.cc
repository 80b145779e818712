// The runs of check_row: all ways in which a plan may call a kernel on one node.
#include "kernels/cpu/testing/conformance.h"

#include <algorithm>

#include "ir/facts.h"

namespace octet::cpu {
namespace {

constexpr size_t kGuard = 256;  // bytes on either side; buffers keep the plan's 64-byte alignment
constexpr auto kCanary = std::byte{0xC5};
constexpr auto kPoison = std::byte{0xFF};  // NaN in every float type, -1 in integers

class GuardedBuffer {
 public:
  explicit GuardedBuffer(const TensorType& type) : size_(static_cast<size_t>(type.bytes())) {
    storage_.assign(size_ + 2 * kGuard + 64, kCanary);
    offset_ = kGuard;
    while ((reinterpret_cast<uintptr_t>(storage_.data()) + offset_) % 64 != 0) ++offset_;
    std::fill_n(storage_.begin() + static_cast<int64_t>(offset_), size_, kPoison);
  }
  std::byte* data() { return storage_.data() + offset_; }
  std::vector<std::byte> contents() const {
    return {storage_.begin() + static_cast<int64_t>(offset_), storage_.begin() + static_cast<int64_t>(offset_ + size_)};
  }
  bool intact() const {
    const auto is_canary = [](std::byte byte) { return byte == kCanary; };
    const auto begin = storage_.begin() + static_cast<int64_t>(offset_), end = begin + static_cast<int64_t>(size_);
    return std::all_of(storage_.begin(), begin, is_canary) && std::all_of(end, storage_.end(), is_canary);
  }

 private:
  size_t size_, offset_ = 0;
  std::vector<std::byte> storage_;
};

// One unit in the last place of a float of 16 or 8 bits near `value`.
double ulp(DType dtype, double value) {
  int digits = 0, smallest = 0;
  switch (dtype) {
    case DType::kBF16: digits = 8, smallest = -126; break;
    case DType::kF16: digits = 11, smallest = -14; break;
    case DType::kE4M3: digits = 4, smallest = -6; break;
    case DType::kE5M2: digits = 3, smallest = -14; break;
    default: return 0;
  }
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, smallest) - (digits - 1));
}

// "" when `actual` is within the tolerance of `expected`, else the worst element.
std::string difference(const RefTensor& actual, const RefTensor& expected, const Tolerance& tolerance,
                       Neighbours neighbours) {
  const DType dtype = expected.type.dtype;
  const bool equal_only = !is_float(dtype) || is_fp8(dtype);
  double worst = 0;
  size_t beyond = 0;
  std::string message;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double a = actual.values[i], e = expected.values[i];
    if (a == e || (std::isnan(a) && std::isnan(e))) continue;
    const double loosened = equal_only ? 0 : tolerance.absolute + tolerance.relative * std::fabs(e);
    const double allowed = loosened + (loosened > 0 ? ulp(dtype, e) : 0);
    const double error = std::fabs(a - e);
    if (error <= allowed) continue;
    // Above a power of two the spacing is twice that below.
    const double unit = dtype == DType::kF32 ? neighbours.f32_unit : std::max(ulp(dtype, e), ulp(dtype, a));
    const bool neighbour = neighbours.share > 0 && error <= 2 * unit + loosened;
    if (neighbour &&
        static_cast<double>(++beyond) <= neighbours.share * static_cast<double>(expected.values.size()) + 1)
      continue;
    if (message.empty() || error > worst) {
      worst = error;
      message = fmt::format("element {}: {} instead of {} (difference {:.3g}, allowed {:.3g}: {})", i, a, e, error,
                            allowed, tolerance.reason);
    }
  }
  return message;
}

struct Variant {
  std::vector<bool> wanted;  // per result
  std::vector<int> taken;    // per result: the input whose buffer it reuses, or -1
  std::string name;
};

void run_variant(const char* name, const BoundKernel& kernel, const Node& node, const std::vector<RefTensor>& inputs,
                 const std::vector<RefTensor>& expected, const Tolerance& tolerance, Neighbours neighbours,
                 const Variant& run, std::vector<std::string>& failures) {
  const auto report = [&](const std::string& what) {
    failures.push_back(fmt::format("row {}, {}: {}", name, run.name, what));
  };
  std::vector<GuardedBuffer> in_buffers, out_buffers;
  std::vector<Tensor> in, out;
  std::vector<std::vector<std::byte>> before;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool exists = node.inputs[i].exists();
    in_buffers.emplace_back(exists ? inputs[i].type : TensorType{DType::kU8, {0}});
    if (exists) store_tensor(inputs[i], in_buffers[i].data());
    before.push_back(in_buffers[i].contents());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool exists = node.inputs[i].exists();
    in.push_back({exists ? in_buffers[i].data() : nullptr, exists ? &inputs[i].type : nullptr});
  }
  for (const TensorType& type : node.results) out_buffers.emplace_back(type);
  for (size_t r = 0; r < node.results.size(); ++r) {
    void* data = run.taken[r] >= 0 ? in[static_cast<size_t>(run.taken[r])].data : out_buffers[r].data();
    out.push_back({run.wanted[r] ? data : nullptr, &node.results[r]});
  }
  static GuardedBuffer workspace({DType::kU8, {kLeastWorkspace}});
  kernel({in, out, {workspace.data(), static_cast<size_t>(kLeastWorkspace)}});

  for (size_t i = 0; i < in_buffers.size(); ++i) {
    if (!in_buffers[i].intact()) report(fmt::format("wrote around input {}", i));
    const bool taken = std::find(run.taken.begin(), run.taken.end(), static_cast<int>(i)) != run.taken.end();
    if (!taken && in_buffers[i].contents() != before[i]) report(fmt::format("changed input {}", i));
  }
  if (!workspace.intact()) report("wrote around the workspace");
  for (size_t r = 0; r < out.size(); ++r) {
    if (!out_buffers[r].intact()) report(fmt::format("wrote around result {}", r));
    if (out[r].data == nullptr) continue;
    const RefTensor actual = load_tensor(node.results[r], out[r].data);
    const std::string message = difference(actual, expected[r], tolerance, neighbours);
    if (!message.empty()) report(fmt::format("result {} {}: {}", r, to_string(node.results[r]), message));
  }
}

std::vector<Variant> runs_of(const Node& node, const std::vector<RefTensor>& inputs) {
  const size_t results = node.results.size();
  const std::vector<bool> all(results, true);
  std::vector<int> apart;  // except results that must be in place
  for (size_t r = 0; r < results; ++r) apart.push_back(must_alias(node, static_cast<int>(r)));
  std::vector<Variant> runs = {{all, apart, "all results"}};
  // Each (result, input) pair that may share a buffer, alone; and as many pairs as possible at once.
  std::vector<int> together = apart;
  int pairs = 0;
  for (size_t r = 0; r < results; ++r) {
    for (size_t at = 0; at < inputs.size() && apart[r] < 0; ++at) {
      const int i = static_cast<int>(at);
      if (!node.inputs[at].exists() || !may_take_over(node, static_cast<int>(r), i)) continue;
      const TensorType &from = inputs[at].type, &to = node.results[r];
      if (from.shape != to.shape || dtype_bytes(from.dtype) != dtype_bytes(to.dtype)) continue;
      std::vector<int> taken = apart;
      taken[r] = i;
      runs.push_back({all, taken, fmt::format("result {} in place of input {}", r, i)});
      if (together[r] < 0 && std::find(together.begin(), together.end(), i) == together.end()) together[r] = i, ++pairs;
    }
  }
  if (pairs > 1) runs.push_back({all, together, "all in place"});
  for (size_t r = 0; results > 1 && r < results; ++r) {
    std::vector<bool> only(results, false);
    only[r] = true;
    std::vector<int> taken(results, -1);
    taken[r] = apart[r];
    runs.push_back({only, taken, fmt::format("result {} only", r)});
  }
  return runs;
}

}  // namespace

std::vector<std::string> check_kernel(const char* name, const BoundKernel& kernel, const Graph& graph, const Node& node,
                                      const std::vector<RefTensor>& inputs, const std::vector<RefTensor>& expected,
                                      const Tolerance& tolerance, Neighbours neighbours) {
  std::vector<std::string> failures;
  for (const Variant& run : runs_of(node, inputs)) {
    run_variant(name, kernel, node, inputs, expected, tolerance, neighbours, run, failures);
  }
  return failures;
}

std::vector<std::string> check_row(const KernelEntry& row, const Graph& graph, const Node& node,
                                   const std::vector<RefTensor>& inputs, const std::vector<RefTensor>& expected,
                                   const Tolerance& tolerance, Neighbours neighbours) {
  return check_kernel(row.name, row.bind(graph, node), graph, node, inputs, expected, tolerance, neighbours);
}

std::vector<std::vector<std::byte>> run_node(const Graph& graph, const Node& node,
                                             const std::vector<RefTensor>& inputs) {
  return run_node_within(kLeastWorkspace, graph, node, inputs);
}

std::vector<std::vector<std::byte>> run_node_within(int64_t workspace_bytes, const Graph& graph, const Node& node,
                                                    const std::vector<RefTensor>& inputs) {
  std::vector<std::vector<std::byte>> in_bytes, out_bytes;
  std::vector<Tensor> in, out;
  for (const RefTensor& tensor : inputs) {
    in_bytes.emplace_back(tensor.values.empty() ? 0 : static_cast<size_t>(tensor.type.bytes()));
    if (!tensor.values.empty()) store_tensor(tensor, in_bytes.back().data());
    in.push_back({tensor.values.empty() ? nullptr : in_bytes.back().data(), &tensor.type});
  }
  for (const TensorType& type : node.results) {
    out_bytes.emplace_back(static_cast<size_t>(type.bytes()));
    out.push_back({out_bytes.back().data(), &type});
  }
  static GuardedBuffer workspace({DType::kU8, {kLeastWorkspace}});
  select_kernel(graph, node).run({in, out, {workspace.data(), static_cast<size_t>(workspace_bytes)}});
  return out_bytes;
}

std::vector<std::string> check_fusion(const Graph& graph, const Node& fusion, const std::vector<RefTensor>& inputs,
                                      const NodeRunner& run) {
  const Graph& body = *fusion.body;
  std::vector<std::vector<RefTensor>> made;  // by node of the body and result
  std::vector<std::vector<std::vector<std::byte>>> bytes;
  size_t leaf = 0;
  for (const Node& member : body.nodes()) {
    made.emplace_back(), bytes.emplace_back();
    if (member.op == Op::kInput) {
      made.back().push_back(inputs[leaf++]);
      continue;
    }
    std::vector<RefTensor> in;
    for (Value v : member.inputs) {
      in.push_back(v.exists() ? made[static_cast<size_t>(index(v.node))][static_cast<size_t>(v.result)] : RefTensor{});
    }
    bytes.back() = run(body, member, in);
    for (size_t r = 0; r < member.results.size(); ++r) {
      made.back().push_back(load_tensor(member.results[r], bytes.back()[r].data()));
    }
  }
  std::vector<std::string> failures;
  const auto fused = run(graph, fusion, inputs);
  for (size_t i = 0; i < fused.size(); ++i) {
    const Value value = body.outputs()[i].value;
    const auto node = static_cast<size_t>(index(value.node)), result = static_cast<size_t>(value.result);
    if (fused[i] == bytes[node][result]) continue;
    const RefTensor& unfused = made[node][result];
    const std::string message = difference(load_tensor(unfused.type, fused[i].data()), unfused, {}, {});
    failures.push_back(fmt::format("{} fused: {}", body.outputs()[i].name, message.empty() ? "signs of 0" : message));
  }
  return failures;
}

}  // namespace octet::cpu
