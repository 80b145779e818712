// octet-bench timings: what the three products of a linear layer take in bf16 and in FP8, quantizing included: the rows
// of a Target that recipe auto judges by (docs/numerics.md).
//
// x and dy are in bf16 and just made, as after a norm. Their quantize kernels, with both layouts of codes, count half
// to each product that reads them, and so do those of the weight, as in a step of one micro-batch. The passes for an
// amax do not count: what makes a tensor takes its amax along.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "bench/commands.h"
#include "bench/measure.h"
#include "exec/executor.h"
#include "ir/builder.h"
#include "ir/program.h"
#include "numbers.h"
#include "passes/fuse.h"
#include "passes/plan_memory.h"
#include "passes/quantize_nodes.h"

namespace octet {
namespace {

constexpr std::array<const char*, 3> kPrecisions = {"bf16", "fp8-tensor", "fp8-block"},
                                     kRoles = {"fprop", "dgrad", "wgrad"};
// Products of this size go before what is timed on a GPU: they take what lies in its caches, and long enough for all
// other launches to be queued behind them, so that no time of the host's is measured.
constexpr int64_t kBallast = 4096;

struct Options {
  std::vector<int64_t> tokens = {2048, 8192, 32768}, widths = {384, 768, 2048, 4096, 8192, 16384};
  int64_t widest_mlp = 4096, largest = 2048, repeats = 7;
  int threads = 0;
  std::string device = "auto", out;
};

struct Layer {
  int64_t tokens, out, in;
};

// One form of an operand for both products that read it; `_t`: transposed.
struct Operand {
  Value data, scale, data_t, scale_t;
};

class LayerProgram {
 public:
  LayerProgram(const Layer& layer, const std::string& precision, const Target& target)
      : target_(target),
        fp8_(precision != "bf16"),
        block_(precision == "fp8-block"),
        recipe_(parse_recipe(block_ ? "fp8-block"
                             : fp8_ ? "fp8-current"
                                    : "bf16")) {
    const auto [tokens, out, in] = layer;
    ballast();
    const Operand w = operand("w", b_.state("w", {fp8_ ? DType::kF32 : DType::kBF16, {out, in}}), false);
    ballast();
    const Operand x = operand("x", made("x", tokens, in), false);
    product("fprop", x.data, x.scale, false, w.data, w.scale, true);
    ballast();
    const Operand dy = operand("dy", made("dy", tokens, out), true);
    if (fp8_ && (target.fp8_tn_only || block_)) {
      product("dgrad", dy.data, dy.scale, false, w.data_t, w.scale_t, true);
      product("wgrad", dy.data_t, dy.scale_t, false, x.data_t, x.scale_t, true);
    } else {
      product("dgrad", dy.data, dy.scale, false, w.data, w.scale, false);
      product("wgrad", dy.data, dy.scale, true, x.data, x.scale, false);
    }
    if (heavy_.exists()) b_.output("ballast", b_.reduce(heavy_, "sum", "all"));
  }

  Plan plan() {
    Target fusing = target_;  // a scale is made on the way of its quantize where a step's plan has it so
    fusing.fusions = {"scale_quantize"};
    if (target_.has_fusion("scale_quantize")) fuse_graph(graph_, fusing);
    graph_.set_stage(Stage::kPacked);
    Program program;
    program.name = "linear";
    program.add_graph(std::move(graph_));
    collect_state(program);
    return plan_memory(std::move(program), target_);
  }

 private:
  void ballast() {
    if (target_.device != Device::kCuda) return;
    const Value z = b_.state("z", {DType::kBF16, {kBallast, kBallast}});
    heavy_ = matmul(heavy_.exists() ? heavy_ : z, z, false, false, "bf16", {}, "ballast");
  }

  Value made(const std::string& name, int64_t rows, int64_t columns) {
    const Value stored = b_.state(name, {DType::kBF16, {rows, columns}});
    return {b_.emit(Op::kAdd, {stored, stored}, {}, "made"), 0};
  }

  Operand operand(const std::string& name, Value x, bool gradient) {
    if (!fp8_) return {.data = x};
    const bool weight = name == "w";
    const DType format = gradient && !block_ ? recipe_.gradient_format : recipe_.forward_format;
    const ScaleLayout layout = !block_ ? ScaleLayout::kTensor : weight ? ScaleLayout::kTile128 : ScaleLayout::kRow128;
    Value scale;
    if (!block_) {
      const Attrs attrs = {{"format", std::string(dtype_name(format))}, {"margin", int64_t{0}}, {"pow2", false}};
      scale = {b_.emit(Op::kComputeScale, {b_.state(name + ".amax", {DType::kF32, {1}})}, attrs, name), 0};
    }
    const NodeId node = emit_quantize(b_, x, scale, recipe_, layout, format, name);
    layouts_[{node, kCodes}] = layouts_[{node, kCodesT}] = scale_layout_name(layout);
    return {.data = {node, kCodes},
            .scale = {node, kScaleInv},
            .data_t = {node, kCodesT},
            .scale_t = {node, block_ ? kScaleInvT : kScaleInv}};
  }

  Value matmul(Value a, Value b, bool trans_a, bool trans_b, const char* to, Attrs attrs, const std::string& name) {
    attrs.set("trans_a", trans_a);
    attrs.set("trans_b", trans_b);
    attrs.set("to", std::string(to));
    return {b_.emit(Op::kMatmul, {a, b}, std::move(attrs), name), 0};
  }

  void product(const std::string& role, Value a, Value a_scale, bool trans_a, Value b, Value b_scale, bool trans_b) {
    const char* to = role == "wgrad" ? "f32" : "bf16";
    Attrs attrs = {{"gemm", std::string("linear")}, {"role", role}};
    Value y;
    if (fp8_) {
      attrs.set("trans_a", trans_a);
      attrs.set("trans_b", trans_b);
      attrs.set("to", std::string(to));
      attrs.set("scaling_a", layouts_.at(a));
      attrs.set("scaling_b", layouts_.at(b));
      y = {b_.emit(Op::kScaledMatmul, {a, a_scale, b, b_scale}, attrs, role), 0};
    } else {
      y = matmul(a, b, trans_a, trans_b, to, attrs, role);
    }
    b_.output(role, b_.reduce(y, "sum", "all"));
  }

  const Target& target_;
  bool fp8_, block_;
  Recipe recipe_;
  Graph graph_{"linear"};
  Builder b_{graph_};
  Value heavy_;
  std::unordered_map<Value, std::string, ValueHash> layouts_;
};

// Normal values, a million of them over and over.
void fill_state(Executor& executor, const StateEntry& entry, double deviation) {
  constexpr int64_t kTile = 1'048'573;
  static const std::vector<float> normals = [] {
    std::vector<float> values(kTile);
    Philox random(7, 1);
    for (float& value : values) value = static_cast<float>(random.normal());
    return values;
  }();
  const int64_t width = dtype_bytes(entry.type.dtype), tile_bytes = kTile * width;
  std::vector<float> scaled = normals;
  for (float& value : scaled) value *= static_cast<float>(deviation);
  std::vector<std::byte> tile(static_cast<size_t>(tile_bytes));
  convert(DType::kF32, scaled.data(), entry.type.dtype, tile.data(), kTile);
  executor.fill_state_part(entry.name, 0, entry.type.bytes(), 256, [&](int64_t at, std::span<std::byte> to) {
    for (size_t done = 0; done < to.size();) {
      const auto from = static_cast<size_t>((at + static_cast<int64_t>(done)) % tile_bytes);
      const size_t piece = std::min(to.size() - done, tile.size() - from);
      std::memcpy(to.data() + done, tile.data() + from, piece);
      done += piece;
    }
  });
}

struct LayerTimes {
  std::array<double, 3> roles;     // seconds of fprop, dgrad and wgrad, with their shares of the quantizing
  std::array<double, 3> quantize;  // of it, whole: x, dy and w
};

LayerTimes measure_layer(const Layer& layer, const std::string& precision, const Target& target, int64_t repeats) {
  auto executor = make_executor(LayerProgram(layer, precision, target).plan());
  for (const StateEntry& entry : executor->program().states()) {
    if (entry.name.ends_with(".amax")) {
      const float amax = entry.name == "w.amax" ? 0.1f : 10.0f;
      executor->write_state(entry.name, std::as_bytes(std::span(&amax, 1)));
    } else {
      fill_state(*executor, entry, entry.name == "w" ? 0.02 : entry.name == "z" ? 1.0 / 64 : 1.0);
    }
  }
  for (int i = 0; i < 2; ++i) executor->run("linear");
  std::map<std::string, std::vector<double>> seconds;  // by name: what makes a scale has its quantize's
  for (int64_t i = 0; i < repeats; ++i) {
    executor->set_profiling(true);
    executor->run("linear");
    std::map<std::string, double> once;
    for (const NodeTime& time : executor->profile()) once[time.name] += time.seconds;
    for (const auto& [name, value] : once) seconds[name].push_back(value);
  }
  const auto of = [&](const char* name) { return seconds.contains(name) ? median(seconds.at(name)) : 0.0; };
  const double x = of("x"), dy = of("dy"), w = of("w");
  return {.roles = {of("fprop") + (x + w) / 2, of("dgrad") + (dy + w) / 2, of("wgrad") + (x + dy) / 2},
          .quantize = {x, dy, w}};
}

GemmTiming row_of(const Layer& layer, const std::string& precision, size_t role, double seconds) {
  const auto [tokens, out, in] = layer;
  const std::array<std::array<int64_t, 3>, 3> dims = {{{tokens, out, in}, {tokens, in, out}, {out, in, tokens}}};
  const auto [m, n, k] = dims[role];
  return {.precision = precision, .m = m, .n = n, .k = k, .seconds = seconds, .role = kRoles[role]};
}

std::vector<Layer> layers_of(const Options& options) {
  std::vector<Layer> layers;
  for (int64_t tokens : options.tokens) {
    for (int64_t width : options.widths) {
      layers.push_back({tokens, width, width});
      if (width > options.widest_mlp) continue;
      layers.push_back({tokens, 4 * width, width});
      layers.push_back({tokens, width, 4 * width});
    }
  }
  std::erase_if(layers, [&](const Layer& layer) {
    const auto [tokens, out, in] = layer;
    return tokens * out * in > options.largest << 30;
  });
  return layers;
}

void run_timings(const Options& options) {
  set_thread_count(options.threads);
  const Target target = target_of(resolve_device(options.device));
  std::ofstream rows;
  if (!options.out.empty()) {
    rows.open(options.out);
    check(rows.good(), ErrorCode::kIo, "{}: cannot be written", options.out);
  }
  fmt::print(
      "{}; microseconds with quantizing, bf16 / fp8-tensor / fp8-block; of it the quantizing of x, dy and the weight\n"
      "{:>7} {:>6} {:>6}",
      target.name, "tokens", "out", "in");
  for (const char* role : kRoles) fmt::print(" {:>26}", role);
  for (size_t p = 1; p < 3; ++p) fmt::print(" {:>20}", kPrecisions[p]);
  fmt::print("\n");
  for (const Layer& layer : layers_of(options)) {
    std::array<LayerTimes, 3> times;  // by precision
    for (size_t p = 0; p < 3; ++p) times[p] = measure_layer(layer, kPrecisions[p], target, options.repeats);
    fmt::print("{:>7} {:>6} {:>6}", layer.tokens, layer.out, layer.in);
    for (size_t r = 0; r < 3; ++r) {
      for (size_t p = 0; p < 3; ++p) {
        fmt::print(" {:>8.1f}", 1e6 * times[p].roles[r]);
        if (rows.is_open()) rows << timing_text(row_of(layer, kPrecisions[p], r, times[p].roles[r]));
      }
    }
    for (size_t p = 1; p < 3; ++p) {
      for (double seconds : times[p].quantize) fmt::print(" {:>6.1f}", 1e6 * seconds);
    }
    fmt::print("\n");
    std::fflush(stdout);
    rows.flush();
  }
}

}  // namespace

void add_timings_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("timings", "The products of linear layers in bf16 and FP8, quantizing included");
  command->add_option("--tokens", options->tokens, "of a micro-batch")->check(positive())->capture_default_str();
  command->add_option("--widths", options->widths, "of square layers")->check(positive())->capture_default_str();
  for (auto [name, field, meaning] :
       {std::tuple{"--widest-mlp", &options->widest_mlp, "widths up to this one also to and from four times as wide"},
        std::tuple{"--largest", &options->largest, "products of more than this many 2^30 multiply-adds are left out"},
        std::tuple{"--repeats", &options->repeats, "runs; medians count"}})
    command->add_option(name, *field, meaning)->check(positive())->capture_default_str();
  command->add_option("--device", options->device, "auto | cpu | cuda")->capture_default_str();
  command->add_option("--threads", options->threads, "0: all cores");
  command->add_option("--out", options->out, "file for the rows, as a target file has them");
  command->callback([options] { run_timings(*options); });
}

}  // namespace octet
