// Sharded programs against whole ones: the same training steps on the interpreter in float64, every rank a thread.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "base/error.h"
#include "dist/communicator.h"
#include "exec/parts.h"
#include "exec/testing/tiny_program.h"
#include "ir/facts.h"
#include "ir/text.h"
#include "kernels/cpu/reference.h"

namespace octet {
namespace {

struct Way {
  const char* name;
  Mesh mesh;
  bool sequence = false;
  ShardLevel level = ShardLevel::kNone;
  bool overlap = true;
};

// Values of states by name, whole.
using States = std::map<std::string, std::vector<double>>;

bool is_compared(const StateEntry& entry) {
  return entry.role == StateRole::kMaster || entry.role == StateRole::kMoment || entry.role == StateRole::kGradient ||
         entry.role == StateRole::kBuffer || is_scale(entry.role);
}

constexpr int kSteps = 2, kMicroBatches = 4;  // of a step

ModelConfig config_of(const std::string& family) {
  ModelConfig config = tiny::model(family);
  config.dropout = 0.1;
  if (family == "falcon") config.kv_heads = 1;
  if (family == "bloom") config.vocab_size = 43;  // divides by nothing: padded
  if (ExpertsSpec& experts = config.experts; experts.count > 0) {
    const int64_t shared = experts.shared_intermediate > 0 ? 24 : 0;
    experts = {.count = 4, .intermediate = 16, .shared_intermediate = shared, .renormalize = experts.renormalize};
    experts.balance_loss = 0.1, experts.z_loss = 0.01;
  }
  return config;
}

CompileOptions options_of(const Way& way, const std::string& recipe) {
  CompileOptions options;
  options.recipe = parse_recipe(recipe);
  options.parallel = {.mesh = way.mesh, .sequence = way.sequence, .overlap = way.overlap, .level = way.level};
  return options;
}

class Training {
 public:
  enum Device { kFloat64, kFloat32, kCpu };  // interpreters, the CPU executor

  explicit Training(const ModelConfig& config, Device device = kFloat64, const tiny::Sizes& sizes = {})
      : config_(config), device_(device), sizes_(sizes) {}

  std::string first_graph = "train";  // of a step's first micro-batch

  States run(const Way& way, const std::string& recipe = "fp32") {
    CompileOptions options = options_of(way, recipe);
    if (device_ == kCpu) options.target = cpu_target();
    const Plan plan = compile(tiny::training_program(config_, sizes_), options);
    const Program& program = plan.program;
    std::map<std::string, std::map<int64_t, std::map<int32_t, double>>> pieces;
    std::mutex mutex;
    run_thread_ranks(way.mesh, [&](Communicator& rank) {
      const auto executor =
          device_ == kCpu
              ? make_cpu_executor(plan, &rank)
              : make_interpreter(program, device_ == kFloat64 ? InterpretMode::kFloat64 : InterpretMode::kFloat32,
                                 &rank);
      train(*executor, rank);
      const std::lock_guard lock(mutex);
      for (const StateEntry& entry : program.states())
        if (is_compared(entry)) join(pieces[entry.name], entry, values_of(*executor, entry), rank);
    });
    States states;
    for (const auto& [name, elements] : pieces) {
      for (const auto& [element, addends] : elements) {
        double sum = 0;
        for (const auto& [piece, value] : addends) sum += value;
        states[name].push_back(sum);
      }
    }
    return states;
  }

 private:
  std::vector<double> values_of(Executor& executor, const StateEntry& entry) const {
    if (device_ != kCpu) return interpreted_state(executor, entry.name);
    std::vector<std::byte> bytes(static_cast<size_t>(entry.type.bytes()));
    executor.read_state(entry.name, bytes);
    return cpu::load_tensor(entry.type, bytes.data()).values;
  }

  void train(Executor& executor, const Communicator& rank) const {
    const Coordinate at = rank.coordinate();
    for (const StateEntry& entry : executor.program().states()) {
      if (entry.role != StateRole::kMaster) continue;
      const Shape whole = whole_shape(entry.type.shape, entry.layout, rank.mesh());
      const Shape logical = entry.placements.empty() ? whole : entry.placements[0].shape;
      std::vector<float> values = tiny::initial_values(entry.name, logical, 7, std::hash<std::string>()(entry.name));
      values.resize(static_cast<size_t>(whole.elements()));
      std::vector<std::byte> part(static_cast<size_t>(entry.type.bytes()));
      copy_part(std::as_bytes(std::span(values)), entry.type, entry.layout, rank.mesh(), at, part);
      executor.write_state(entry.name, part);
    }
    executor.prepare();
    const int ranks = rank.mesh()[Axis::kData];
    for (int step = 0; step < kSteps; ++step) {
      for (int i = at[Axis::kData]; i < kMicroBatches; i += ranks) {
        const char* graph = i < ranks ? first_graph.c_str() : "accumulate";
        Batch batch = tiny::batch(kMicroBatches * step + i, sizes_);
        batch.tensors.at("rng").values<int64_t>()[2] = i;
        write_inputs(executor, graph, batch);
        executor.run(graph);
      }
      input_as<float>(executor, "apply", "lr")[0] = 0.01f;
      input_as<float>(executor, "apply", "step")[0] = static_cast<float>(step + 1);
      executor.run("apply");
    }
  }

  // Into pieces of the pending axes by element of the whole; copies that differ are test failures.
  static void join(std::map<int64_t, std::map<int32_t, double>>& elements, const StateEntry& entry,
                   const std::vector<double>& values, const Communicator& rank) {
    const Mesh& mesh = rank.mesh();
    const Coordinate at = rank.coordinate();
    int32_t piece = 0;
    for (Axis axis : entry.layout.pending_axes().list()) piece = piece * mesh[axis] + at[axis];
    for_each_element(entry.type.shape, entry.layout, mesh, at, [&](int64_t to, int64_t from) {
      const auto [found, added] = elements[to].emplace(piece, values[static_cast<size_t>(from)]);
      EXPECT_TRUE(added || found->second == values[static_cast<size_t>(from)])
          << entry.name << ": copies of element " << to << " differ";
    });
  }

  ModelConfig config_;
  Device device_;
  tiny::Sizes sizes_;
};

class ShardedTraining : public testing::TestWithParam<std::string> {};

// Four micro-batches a step: ranks of two have two each.
const std::vector<Way> kDataWays = {
    {"dp2", {{1, 2, 1, 1}}},
    {"dp2 optimizer", {{1, 2, 1, 1}}, false, ShardLevel::kOptimizer},
    {"dp2 gradients", {{1, 2, 1, 1}}, false, ShardLevel::kGradients},
    {"dp2 parameters", {{1, 2, 1, 1}}, false, ShardLevel::kParameters},
    {"dp4 parameters", {{1, 4, 1, 1}}, false, ShardLevel::kParameters},
};
const std::vector<Way> kOtherWays = {
    {"tp2", {{1, 1, 1, 2}}},
    {"tp2 sequence", {{1, 1, 1, 2}}, true},
    {"cp2", {{1, 1, 2, 1}}},
    {"cp2 optimizer", {{1, 1, 2, 1}}, false, ShardLevel::kOptimizer},
    {"cp2 gradients", {{1, 1, 2, 1}}, false, ShardLevel::kGradients},
    {"cp2 parameters", {{1, 1, 2, 1}}, false, ShardLevel::kParameters},
    {"dp2 cp2 optimizer", {{1, 2, 2, 1}}, false, ShardLevel::kOptimizer},
    {"dp2 cp2 gradients", {{1, 2, 2, 1}}, false, ShardLevel::kGradients},
    {"dp2 cp2 parameters", {{1, 2, 2, 1}}, false, ShardLevel::kParameters},
    {"dp2 tp2 sequence optimizer", {{1, 2, 1, 2}}, true, ShardLevel::kOptimizer},
    {"dp2 cp2 tp2 sequence optimizer", {{1, 2, 2, 2}}, true, ShardLevel::kOptimizer},
    {"dp2 cp2 tp2 sequence parameters", {{1, 2, 2, 2}}, true, ShardLevel::kParameters},
};

std::vector<std::string> mixtures() {
  std::vector<std::string> names = architectures();
  std::erase_if(names, [](const std::string& name) { return model_family(name).experts.count == 0; });
  return names;
}

void expect_that_of_one_rank(Training training, const std::vector<Way>& ways) {
  const States whole = training.run({"one", {}});
  for (const Way& way : ways) {
    SCOPED_TRACE(way.name);
    const States sharded = training.run(way);
    ASSERT_EQ(sharded.size(), whole.size());
    for (const auto& [name, values] : whole) {
      const std::vector<double>& got = sharded.at(name);
      ASSERT_GE(got.size(), values.size()) << name;
      double error = 0;
      for (size_t i = 0; i < got.size(); ++i)
        error = std::max(error, std::abs(got[i] - (i < values.size() ? values[i] : 0)));
      EXPECT_LE(error, 1e-10) << name;
    }
  }
}

TEST_P(ShardedTraining, IsThatOfOneRank) {
  std::vector<Way> ways = kDataWays;
  if (config_of(GetParam()).experts.count == 0) ways.insert(ways.end(), kOtherWays.begin(), kOtherWays.end());
  expect_that_of_one_rank(Training(config_of(GetParam())), ways);
}

// As many tokens as there are heads, segments, experts, channels, classes: what has rows is known by no size.
TEST(Shard, SizesMayCoincide) {
  const std::vector<Way> ways = {
      {"dp2 parameters", {{1, 2, 1, 1}}, false, ShardLevel::kParameters},
      {"cp2 gradients", {{1, 1, 2, 1}}, false, ShardLevel::kGradients},
      {"tp2 sequence", {{1, 1, 1, 2}}, true},
  };
  const char* families[] = {"llama", "gpt2", "falcon", "gemma", "qwen3", "mixtral"};
  for (uint64_t seed = 0; seed < 12; ++seed) {
    Philox random(seed);
    const auto one_of = [&](std::initializer_list<int64_t> sizes) {
      return sizes.begin()[random.below(static_cast<uint64_t>(sizes.size()))];
    };
    const char* family = families[seed % std::size(families)];
    ModelConfig c = config_of(family);
    const bool mixture = c.experts.count > 0;
    c.heads = one_of({2, 4}), c.kv_heads = family == std::string("falcon") ? 1 : one_of({2, c.heads});
    const int64_t head_dim = one_of({2, 4});
    if (c.head_dim > 0) c.head_dim = head_dim;
    c.hidden = c.heads * head_dim, c.vocab_size = one_of({c.hidden, 40}), c.intermediate = one_of({c.hidden, 16});
    tiny::Sizes sizes{.tokens = one_of({2, c.heads, c.hidden, c.vocab_size, c.intermediate}), .vocab = c.vocab_size};
    if (mixture) sizes.tokens = c.experts.count;
    sizes.length = c.max_positions = one_of({2, sizes.tokens});
    SCOPED_TRACE(fmt::format("seed {}: {}, {} tokens of sequences of {}, {} of {} heads of {}, vocabulary {}, width {}",
                             seed, family, sizes.tokens, sizes.length, c.kv_heads, c.heads, head_dim, c.vocab_size,
                             c.intermediate));
    expect_that_of_one_rank(Training(c, Training::kFloat64, sizes), mixture ? std::vector<Way>{ways[0]} : ways);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ShardedTraining,
                         testing::Values("llama", "gpt2", "falcon", "bloom", "gemma", "gpt_neox", "opt"));

INSTANTIATE_TEST_SUITE_P(Mixtures, ShardedTraining, testing::ValuesIn(mixtures()));

// Where the first micro-batch runs with statistics.
TEST(Shard, StatisticsChangeNoGradient) {
  for (const Way& way : kDataWays) {
    Training training(config_of("llama"), Training::kFloat32);
    const States plain = training.run(way, "auto");
    training.first_graph = "train_stats";
    EXPECT_EQ(training.run(way, "auto"), plain) << way.name;
  }
}

double distance(const States& a, const States& b, const std::string& begin) {
  double sum = 0;
  for (const auto& [name, values] : a) {
    if (!name.starts_with(begin)) continue;
    for (size_t i = 0; i < values.size(); ++i) sum += std::pow(values[i] - b.at(name)[i], 2);
  }
  return std::sqrt(sum);
}

const Way kRecipeWays[] = {
    {"tp2", {{1, 1, 1, 2}}},
    {"tp2 sequence", {{1, 1, 1, 2}}, true},
    {"cp2", {{1, 1, 2, 1}}},
    {"cp2 gradients", {{1, 1, 2, 1}}, false, ShardLevel::kGradients},
    {"dp2 cp2 parameters", {{1, 2, 2, 1}}, false, ShardLevel::kParameters},
    {"dp2 tp2 sequence parameters", {{1, 2, 1, 2}}, true, ShardLevel::kParameters},
};

// Gradients of the first step: the distance of a recipe from its sharded self is that of other orders of sums and of
// sums rounded in parts.
TEST(Shard, RecipesStayNearThemselves) {
  for (const auto& [family, device] :
       {std::pair{"llama", Training::kFloat32}, {"llama", Training::kCpu}, {"gpt2", Training::kCpu}}) {
    Training training(config_of(family), device);
    const States exact = training.run({"one", {}}, "fp32");
    for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed"}) {
      const States whole = training.run({"one", {}}, recipe);
      for (const Way& way : kRecipeWays) {
        const States sharded = training.run(way, recipe);
        EXPECT_LE(distance(whole, sharded, "grad."), std::sqrt(2) * distance(whole, exact, "grad."))
            << family << " " << recipe << " " << way.name << (device == Training::kCpu ? " cpu" : " interpreter");
      }
    }
  }
}

// Without clipping. With several micro-batches a rank gradients that are scattered each time sum in another order.
TEST(Shard, LevelsAreTheSameBits) {
  const auto run = [](int data, int context, ShardLevel level, const char* recipe) {
    const Way way{"", {{1, data, context, 1}}, false, level};
    States states = Training(config_of("llama"), Training::kCpu).run(way, recipe);
    std::erase_if(states, [](const auto& state) { return state.first.starts_with("grad."); });  // parts, added here
    return states;
  };
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed"}) {
    for (int context : {1, 2}) {
      EXPECT_EQ(run(2, context, ShardLevel::kOptimizer, recipe), run(2, context, ShardLevel::kNone, recipe)) << recipe;
      const States none = run(kMicroBatches, context, ShardLevel::kNone, recipe);
      for (ShardLevel level : {ShardLevel::kOptimizer, ShardLevel::kGradients, ShardLevel::kParameters})
        EXPECT_EQ(run(kMicroBatches, context, level, recipe), none) << recipe << ", context " << context;
    }
  }
}

// Collectives that may run beside kernels are moved, and kernels with them: every node computes what it did. What such
// a collective reads is not written, and what it writes is used by nothing else, until it has ended.
TEST(Shard, OverlapIsTheSameBits) {
  for (Way way :
       {Way{"tp2 sequence", {{1, 1, 1, 2}}, true}, Way{"dp2 gradients", {{1, 2, 1, 1}}, false, ShardLevel::kGradients},
        Way{"cp2 gradients", {{1, 1, 2, 1}}, false, ShardLevel::kGradients},
        Way{"dp2 tp2 sequence parameters", {{1, 2, 1, 2}}, true, ShardLevel::kParameters}}) {
    for (const char* recipe : {"bf16", "fp8-current"}) {
      Training training(config_of("llama"), Training::kCpu);
      const States beside = training.run(way, recipe);
      way.overlap = false;
      EXPECT_EQ(training.run(way, recipe), beside) << way.name << " " << recipe;
      way.overlap = true;
    }
  }
}

using Bytes = std::pair<int64_t, int64_t>;  // of the arena: from, to
std::vector<Bytes> arena_of(const Graph& graph, const GraphPlan& plan, std::span<const Value> values) {
  std::vector<Bytes> bytes;
  for (const Value value : values) {
    if (!value.exists()) continue;
    const BufferRef& ref = plan.buffers[slot(value.node)][static_cast<size_t>(value.result)];
    if (ref.kind == BufferRef::Kind::kArena) bytes.emplace_back(ref.offset, ref.offset + graph.type(value).bytes());
  }
  return bytes;
}

TEST(Shard, MemoryOfCollectivesBesideKernelsIsTheirs) {
  int64_t seen = 0;
  for (const Way& way : {Way{"", {{1, 1, 1, 2}}, true}, Way{"", {{1, 1, 2, 1}}, false, ShardLevel::kGradients},
                         Way{"", {{1, 2, 1, 2}}, true, ShardLevel::kParameters}}) {
    const Plan plan = compile(tiny::training_program(config_of("llama")), options_of(way, "fp8-current"));
    for (const Graph& graph : plan.program.graphs()) {
      const GraphPlan& placed = plan.graphs.at(graph.name());
      const std::vector<int32_t> joins = joins_of(graph);
      const auto results = [&](int32_t i) {
        std::vector<Value> values;
        for (int32_t r = 0; r < std::ssize(graph.node(NodeId{i}).results); ++r) values.push_back({NodeId{i}, r});
        return values;
      };
      for (int32_t i = 0; i < graph.size(); ++i) {
        const Node& node = graph.node(NodeId{i});
        if (!is_async(node)) continue;
        std::vector<Bytes> own = arena_of(graph, placed, node.inputs), written = arena_of(graph, placed, results(i));
        own.insert(own.end(), written.begin(), written.end());
        for (int32_t between = i + 1; between < joins[static_cast<size_t>(i)]; ++between) {
          ++seen;
          if (op_facts(graph.node(NodeId{between}).op).view) continue;
          for (const auto& [from, to] : arena_of(graph, placed, results(between)))
            for (const auto& [begin, end] : own)
              EXPECT_TRUE(to <= begin || end <= from) << graph.name() << ": node " << between << " beside " << i;
        }
      }
    }
  }
  EXPECT_GT(seen, 50);
}

// Plans for CPUs and GPUs, fusions included; a cut between the elements of a block is refused.
TEST(Shard, TakesEveryRecipeAndTarget) {
  for (const char* recipe : {"bf16", "fp8-current", "fp8-delayed", "fp8-block"}) {
    const bool blocks = recipe == std::string("fp8-block");
    for (const char* family : {"llama", "gpt2", "falcon", "gemma"}) {
      ModelConfig config = config_of(family);
      if (blocks) config.hidden = 512, config.intermediate = 512;
      for (const Way& way : kRecipeWays) {
        for (const Target& target : {cpu_target(), h200_target()}) {
          CompileOptions options = options_of(way, recipe);
          options.target = target;
          std::string error;
          try {
            compile(tiny::training_program(config), options);
          } catch (const Error& refused) {
            error = refused.message();
          }
          const bool cut = blocks && (way.sequence || way.mesh[Axis::kContext] > 1);
          EXPECT_EQ(error.find("want a multiple of 128 rows") != std::string::npos, cut) << error;
          EXPECT_TRUE(cut || error.empty()) << recipe << " " << family << " " << way.name << ": " << error;
        }
      }
    }
  }
}

TEST(Shard, ZeroPointsStayWithTheirCodes) {
  for (const char* addend : {"_", "%bias"}) {
    Program program;
    program.add_graph(parse_graph(fmt::format(
        "graph @forward role forward stage precise\n%x = input : bf16[4,96] @x %one = input : f32[1] @one\n"
        "%bias = param : f32[16] @bias %w = state {{split=\"column\"}} : i4[16,96] @w.codes\n"
        "%s = state : f32[3,16] @w.scale %z = state : i8[3,16] @w.zero\n"
        "%y = scaled_matmul %x, %one, %w, %s, {}, %z {{trans_b=true, scaling_b=\"1x32\"}}\noutput @y %y\nend",
        addend)));
    program.add_state({.name = "bias", .type = {DType::kF32, {16}}});
    const auto add = [&](const char* name, DType dtype, Shape shape, StateRole role) {
      program.add_state({.name = name, .type = {dtype, shape}, .role = role, .param = "w"});
    };
    add("w.codes", DType::kI4, {16, 96}, StateRole::kCodes);
    add("w.scale", DType::kF32, {3, 16}, StateRole::kScaleInv);
    add("w.zero", DType::kI8, {3, 16}, StateRole::kZero);
    CompileOptions options;
    options.parallel.mesh = {{1, 1, 1, 2}};
    ASSERT_TRUE(shard(program, options));
    int products = 0;
    for (const Node& node : program.graph("forward").nodes()) {
      if (node.op != Op::kScaledMatmul) continue;
      ++products;
      EXPECT_TRUE(node.operand("b_zero").exists()) << print(program.graph("forward"));
    }
    EXPECT_EQ(products, 1);
  }
}

TEST(Shard, RefusesSizesThatDoNotDivide) {
  const auto refusal = [](const Way& way, const ModelConfig& config) -> std::string {
    try {
      compile(tiny::training_program(config), options_of(way, "fp32"));
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument ? error.message() : "another code";
    }
    return "";
  };
  EXPECT_NE(refusal({"", {{1, 1, 1, 3}}}, config_of("gpt2"))
                .find("parallel.tensor=3 times parallel.context=1: 4 heads do not divide among 3 ranks (want one of 1, "
                      "2, 4)"),
            std::string::npos);
  EXPECT_NE(refusal({"", {{1, 1, 1, 4}}}, config_of("llama"))
                .find("parallel.tensor=4: 2 key heads do not divide among 4 ranks (want one of 1, 2)"),
            std::string::npos);
  ModelConfig odd = config_of("gpt2");
  odd.intermediate = 63;
  EXPECT_NE(refusal({"", {{1, 1, 1, 2}}}, odd).find("63, which does not divide (want one of 1, 3, 7, 9, 21, 63)"),
            std::string::npos);
}

}  // namespace
}  // namespace octet
