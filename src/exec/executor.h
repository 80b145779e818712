// The executor contract: holds the state of a Plan's program, runs its graphs.
//
// interpret.cc (float64, the definition), cpu/ and cuda/ implement it. Callers write inputs into staging spans, run a
// graph by name, read outputs. Everything rejectable was rejected at construction; run() allocates nothing. A process
// may have many, on one device or several, in threads of their own: each belongs to one thread at a time, not to the
// one that made it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/threads.h"
#include "ir/plan.h"

namespace octet {

struct NodeTime {
  std::string graph, name, op, kernel;
  int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
};

class Communicator;
namespace cuda {
class DeviceRanks;
}

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const Program& program() const = 0;
  virtual Communicator* ranks() const { return nullptr; }  // this rank, where the program is one for a mesh
  virtual Coordinate coordinate() const;                   // its place

  // Staging buffer of an input, laid out as its type says; keeps its contents between runs.
  virtual std::span<std::byte> input(const std::string& graph, const std::string& name) = 0;
  // Runs the graph on the copies of this slot of states that have several (StateEntry::slots); state updates are
  // visible afterwards. The slots of a graph share its inputs and outputs.
  virtual void run(const std::string& graph, int32_t slot) = 0;
  void run(const std::string& graph) { run(graph, 0); }
  // Makes the compute copies of parameters that were written, where the program has a graph for them.
  void prepare() {
    if (const Graph* graph = program().find_graph(GraphRole::kPrepare)) run(graph->name());
  }
  // Contents of an output after the graph's last run; valid until any next run, on a GPU until that graph's.
  virtual std::span<const std::byte> output(const std::string& graph, const std::string& name) = 0;

  virtual void read_state(const std::string& name, std::span<std::byte> bytes) = 0;
  // Bytes [offset, offset + part.size()) of a state: how checkpoints are written without a second copy of a tensor.
  virtual void read_state_part(const std::string& name, int64_t offset, std::span<std::byte> part) = 0;
  virtual void write_state(const std::string& name, std::span<const std::byte> bytes) = 0;
  virtual void write_state_part(const std::string& name, int64_t offset, std::span<const std::byte> part) = 0;
  // The same of `bytes` bytes that `make` puts where they belong, or where they are copied from while it makes the
  // next: called for one piece after the other by the calling thread, each whole `grain`s but the last.
  using MakeBytes = FunctionRef<void(int64_t at, std::span<std::byte> to)>;  // `at` counts from `offset`
  virtual void fill_state_part(const std::string& name, int64_t offset, int64_t bytes, int64_t grain,
                               MakeBytes make) = 0;

  // What a state holds goes to another rank, which receives it, of the same size, into one of its own; all of a pair's
  // calls in one order. Graphs that run before have ended with the state, those that run after find what was received,
  // and may overwrite what is sent. On GPUs the host goes on at once. Not of states that have several slots.
  virtual void send_state(const std::string& name, int32_t to);
  virtual void receive_state(const std::string& name, int32_t from);

  virtual int64_t allocated_bytes() const = 0;  // state + arena + inputs
  virtual void set_profiling(bool on) = 0;
  virtual std::vector<NodeTime> profile()
      const = 0;  // per node, since profiling was switched on; includes "(overhead)"
};

// Typed views of the byte spans.
template <typename T>
std::span<T> input_as(Executor& executor, const std::string& graph, const std::string& name) {
  auto bytes = executor.input(graph, name);
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template <typename T>
std::span<const T> output_as(Executor& executor, const std::string& graph, const std::string& name) {
  auto bytes = executor.output(graph, name);
  return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// Rounding of values declared f32 in the interpreter: float32 (the default definition) or none (finite differences).
enum class InterpretMode { kFloat32, kFloat64 };
// Of the rank that `ranks` is (which must outlive it), where the program is one for a mesh.
std::unique_ptr<Executor> make_interpreter(Program program, InterpretMode mode = InterpretMode::kFloat32,
                                           Communicator* ranks = nullptr);
// The values of a state of an interpreter in float64, as its next run reads them.
const std::vector<double>& interpreted_state(Executor& interpreter, const std::string& name);
std::unique_ptr<Executor> make_cpu_executor(Plan plan, Communicator* ranks = nullptr);
// Whether products run on AMX-BF16 tiles: the processor, the kernel and this build have them. Elsewhere FP8 codes are
// decoded for float32 products, while bf16 ones have instructions of their own.
bool has_bf16_tiles();

// How the cuda executor runs. The same bits either way; eager and check_every_node are for looking for faults.
struct CudaOptions {
  int device = 0;                 // which of the usable ones
  bool eager = false;             // launch every node instead of replaying a CUDA graph
  bool check_every_node = false;  // wait after every node, so that an error names it
  bool deterministic = false;     // the same bits in every run
  // Of the mesh that the program is for (dist/cuda/nccl.h), on this device; they outlive the executor. Unused where the
  // program is one of one rank.
  cuda::DeviceRanks* ranks = nullptr;
};
// Throws kUnsupported with the reason where no GPU can be used or this build has no CUDA.
// `ranks`: what states are gathered over where the program is one for a mesh, whose tensors go over options.ranks.
std::unique_ptr<Executor> make_cuda_executor(Plan plan, const CudaOptions& options = {}, Communicator* ranks = nullptr);
// The device's Target: its memory, fusions its kernels have, FP8 rules, measured rates where they are known. Made
// without a context on the device.
Target cuda_target(const CudaOptions& options = {});
// As CUDA says it: this gives the process its context on the device, as an executor does.
int64_t free_cuda_memory(const CudaOptions& options = {});
std::string cuda_bus_id(const CudaOptions& options = {});  // of the device on PCI: what NVML knows it by
// Whether there is a usable GPU and this build can use it; `why` says why not.
bool cuda_available(std::string* why = nullptr);
int cuda_device_count(std::string* why = nullptr);  // usable ones

// "cpu", "cuda" or "auto": cuda where it is available. Throws for cuda where it is not, with the reason.
Device resolve_device(const std::string& name);
Target target_of(Device device, const CudaOptions& options = {});
// Bytes a plan may still take there; 0 = unknown (CPUs only).
int64_t free_memory(Device device, const CudaOptions& options = {});
// The executor of the plan's Target.
std::unique_ptr<Executor> make_executor(Plan plan, const CudaOptions& options = {}, Communicator* ranks = nullptr);

// The CPU's Target: fusions the CPU kernels have, workspace, alignment (measured rates are left 0; octet-bench fills
// them).
Target cpu_target();

}  // namespace octet
