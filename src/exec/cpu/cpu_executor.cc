// The cpu executor: one arena, one state block and the inputs of a plan; a GraphRunner per graph.
//
// All memory is taken and all kernels are bound in the constructor. run() must not allocate, look names up inside the
// loop, or do anything a kernel does not.
#include <cstring>

#include "base/log.h"
#include "exec/collectives.h"
#include "exec/cpu/graph_runner.h"
#include "exec/cpu/memory.h"
#include "exec/plan_executor.h"
#include "kernels/cpu/matmul/gemm.h"

namespace octet {
namespace {

class CpuExecutor final : public PlanExecutor<cpu::GraphRunner> {
 public:
  CpuExecutor(Plan plan, Communicator* ranks) : PlanExecutor(std::move(plan), 64, ranks) {
    join_mesh(plan_.program, ranks_);
    reject_what_cannot_fit(cpu::available_memory_bytes(), "the machine");
    {
      const LoggedTime time("memory");
      place_states([&](int64_t bytes) {
        state_memory_ = cpu::MappedMemory(bytes, "the state");
        return state_memory_.data();
      });
      arena_ = cpu::MappedMemory(plan_.arena_bytes, "the arena");
    }
    const LoggedTime time("kernels bound");
    bind_graphs();
  }

  std::span<std::byte> input(const std::string& graph, const std::string& name) override {
    return runner(graph).input(name);
  }
  void run(const std::string& graph, int32_t slot) override { runner(graph, slot).run(); }
  std::span<const std::byte> output(const std::string& graph, const std::string& name) override {
    return runner(graph).output(name);
  }

  void read_state_part(const std::string& name, int64_t offset, std::span<std::byte> part) override {
    std::memcpy(part.data(), state(name, offset, part.size()), part.size());
  }
  void write_state_part(const std::string& name, int64_t offset, std::span<const std::byte> part) override {
    std::memcpy(state(name, offset, part.size()), part.data(), part.size());
  }
  void fill_state_part(const std::string& name, int64_t offset, int64_t bytes, int64_t, MakeBytes make) override {
    const auto size = static_cast<size_t>(bytes);
    std::byte* to = state(name, offset, size);
    if (bytes > 0) make(0, {to, size});
  }

  int64_t allocated_bytes() const override { return state_memory_.bytes() + arena_.bytes() + input_memory_.bytes(); }

 private:
  void bind_graphs() {
    check(plan_.workspace_bytes >= cpu::kLeastWorkspace, ErrorCode::kInvalidArgument,
          "the plan has {} bytes of workspace and the CPU kernels need {}: plan with cpu_target()",
          plan_.workspace_bytes, cpu::kLeastWorkspace);
    input_memory_ = cpu::MappedMemory(input_bytes(), "the inputs");
    std::byte* inputs = input_memory_.data();
    const std::span<std::byte> workspace = {arena_.data() + plan_.workspace_offset,
                                            static_cast<size_t>(plan_.workspace_bytes)};
    for (const auto& [name, graph_plan] : plan_.graphs) {
      const Graph& graph = plan_.program.graph(name);
      for (int32_t slot = 0; slot < slots_of(plan_.program, graph); ++slot)
        runners_[{name, slot}] = std::make_unique<cpu::GraphRunner>(
            plan_.program, graph, graph_plan, memory_of(graph_plan, graph, arena_.data(), inputs, slot), workspace,
            ranks_);
      inputs += input_bytes(graph_plan, graph);
    }
  }

  cpu::MappedMemory state_memory_, arena_, input_memory_;
};

}  // namespace

std::unique_ptr<Executor> make_cpu_executor(Plan plan, Communicator* ranks) {
  return std::make_unique<CpuExecutor>(std::move(plan), ranks);
}

bool has_bf16_tiles() { return cpu::amx_engine() != nullptr; }

Target cpu_target() {
  Target target{.name = "cpu", .workspace_bytes = cpu::workspace_bytes()};
  using enum FusionPart;
  target.allow(Producer::kNorm, {kResidual, kAmax, kQuantize});
  target.allow(Producer::kNormGrad, {kResidual});
  target.allow(Producer::kActivation, {kCore, kBias, kAmax, kQuantize});
  target.allow(Producer::kActivationGrad, {kCore, kColumnSum});
  target.allow(Producer::kGated, {kCore, kAmax, kQuantize});
  target.allow(Producer::kGatedGrad, {kCore});
  target.integer_products = interpreter_target().integer_products;  // all, most by their definition alone
  for (IntegerProduct& product : target.integer_products)
    if (product.x == DType::kI8 && product.codes == DType::kI4)
      product.order = "rows16", product.rows = 16, product.cols = 8;
  return target;
}

}  // namespace octet
