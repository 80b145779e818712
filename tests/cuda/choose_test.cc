// The choice of a kernel and of its launch, without a GPU: over a sweep of shapes every plan fits the device and covers
// every row; what is chosen for the shapes of models is written down (kernel_choices.txt, docs/support.md).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/testing/test_data.h"
#include "kernels/cuda/inference/choose.h"
#include "kernels/cuda/inference/inference.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/matmul/choose.h"
#include "kernels/cuda/norm/choose.h"
#include "kernels/cuda/precision/choose.h"

namespace octet::cuda {
namespace {

constexpr int64_t kStaticShared = 8 << 10;  // more than the kernels declare themselves

DeviceFacts h200() { return h200_facts(); }

constexpr int64_t kRows[] = {1, 2, 7, 64, 132, 264, 265, 1000, 2112, 4096, 8192, 16384, 65536, 1000003};

// What every launch must be.
void expect_fits(int64_t grid, int64_t threads, int64_t shared) {
  EXPECT_GT(grid, 0);
  EXPECT_LT(grid, int64_t{1} << 31);
  EXPECT_GT(threads, 0);
  EXPECT_LE(threads, kThreadsPerBlock);
  EXPECT_EQ(threads % 32, 0);
  EXPECT_LE(shared + kStaticShared, kSharedBytesPerBlock);
}

template <typename Body>
void for_each_norm(const Body& body) {
  for (int64_t cols : {1,    8,    64,   100,  256,  264,  512,  520,   640,   768,   776,   1024, 1600,
                       2048, 2560, 4096, 4104, 5120, 6144, 8192, 12288, 12296, 16384, 16392, 20000}) {
    for (int64_t rows : kRows) {
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        for (bool adds : {false, true}) {
          SCOPED_TRACE(fmt::format("{} [{}, {}] adds {}", dtype_name(dtype), rows, cols, adds));
          body(NormDesc{.rows = rows, .cols = cols, .dtype = dtype, .adds = adds});
        }
      }
    }
  }
}

TEST(ChooseNorm, EveryPlanFitsTheDeviceAndCoversEveryRow) {
  const DeviceFacts device = h200();
  for_each_norm([&](const NormDesc& desc) {
    EXPECT_EQ(to_string(choose(desc, device)), to_string(candidates(desc, device).front()));
    for (const NormPlan& plan : candidates(desc, device)) {
      expect_fits(plan.grid, plan.threads, plan.shared);
      if (plan.kernel == NormKernel::kElementwise) {
        EXPECT_FALSE(norm_fits_registers(desc.cols));
        EXPECT_EQ(plan.grid, desc.rows);
        return;
      }
      const bool by_warp = plan.kernel == NormKernel::kWarpPerRow || plan.kernel == NormKernel::kWarpPersistent;
      EXPECT_GE(int64_t{by_warp ? 32 : plan.threads} * plan.groups * kGroup, desc.cols);
      EXPECT_LE(plan.stages, kMaxStages);
      const int64_t stage = plan.unit_rows * (desc.adds ? 2 : 1) * desc.cols * dtype_bytes(desc.dtype);
      const int64_t rings = plan.kernel == NormKernel::kWarpPersistent ? kPersistentWarps : 1;
      EXPECT_GE(plan.shared, rings * plan.stages * stage);
      switch (plan.kernel) {
        case NormKernel::kWarpPerRow: EXPECT_GE(plan.grid * kWarpRows, desc.rows); break;
        case NormKernel::kBlockPerRow: EXPECT_EQ(plan.grid, desc.rows); break;
        default: {  // persistent: all blocks are on the device at once, and no ring is longer than the rows
          const int64_t blocks_per_sm = (plan.grid + device.sm_count - 1) / device.sm_count;
          EXPECT_GE(plan.stages, 1);
          EXPECT_LE(blocks_per_sm * plan.threads, kThreadsPerSm);
          EXPECT_LE(blocks_per_sm * (plan.shared + (2 << 10)), kSharedBytesPerSm);
          EXPECT_GE(desc.rows, plan.grid * plan.unit_rows * rings);
        }
      }
    }
  });
}

TEST(ChooseNorm, EveryGradientPlanFitsTheDeviceAndCoversEveryColumn) {
  const DeviceFacts device = h200();
  for_each_norm([&](const NormDesc& desc) {
    const NormGradientPlan plan = choose_norm_gradient(desc, device);
    expect_fits(plan.blocks, plan.threads, plan.shared);
    EXPECT_LE(plan.blocks, desc.rows);
    if (plan.kernel == NormGradientKernel::kElementwise) return;
    EXPECT_EQ(plan.threads % plan.teams, 0);
    EXPECT_GE(int64_t{plan.threads} / plan.teams * plan.groups * kGroup, desc.cols);
    EXPECT_LE(plan.teams, kMaxTeams);
    EXPECT_GE(plan.stages, 1);
    EXPECT_LE(plan.stages, kMaxStages);
    // The teams' sums of dweight, dbias and columns are joined in the memory of the rings.
    const int64_t sums = plan.kernel == NormGradientKernel::kTeams ? (plan.teams - 1) * (desc.adds ? 3 : 2) : 0;
    EXPECT_GE(plan.shared, (sums + (plan.shared_weights ? 1 : 0)) * desc.cols * 4);
  });
}

TEST(ChooseGemv, EveryPlanCoversEveryRowAndSplitsLessTheMoreRowsThereAre) {
  for (int64_t k : {16, 64, 768, 1024, 4096, 11008, 14336, 65536}) {
    for (DType dtype : {DType::kBF16, DType::kE4M3}) {
      for (bool blocks : {false, true}) {
        if (blocks && dtype == DType::kBF16) continue;
        int splits = kMaxGemvSplits;
        for (int64_t n : {1, 16, 17, 512, 1056, 1072, 2112, 4096, 12672, 12688, 50257, 128256}) {
          SCOPED_TRACE(fmt::format("{} n {} k {} blocks {}", dtype_name(dtype), n, k, blocks));
          const GemvDesc desc{.n = n, .k = k, .dtype = dtype, .blocks = blocks};
          for (const GemvPlan& plan : candidates(desc, h200())) {
            expect_fits(plan.grid * plan.splits, 32 * plan.warps, 0);
            EXPECT_GE(plan.grid * plan.tiles * kGemvTileRows, n);
            EXPECT_LT((plan.grid - 1) * plan.tiles * kGemvTileRows, n);
            EXPECT_GE(plan.warps, kMinGemvWarps);
            EXPECT_LE(plan.warps, kMaxGemvWarps);
          }
          const GemvPlan plan = choose(desc, h200());
          if (plan.warps != kMinGemvWarps) continue;
          EXPECT_LE(plan.splits, splits) << "more rows, more split-K";
          splits = plan.splits;
        }
      }
    }
  }
}

PagedProblem paged(int sequences, int queries, int heads, int kv_heads, int dim, int context) {
  PagedProblem p;
  p.tokens = sequences * queries, p.sequences = sequences;
  p.heads = heads, p.kv_heads = kv_heads, p.group = heads / kv_heads, p.dim = dim;
  p.block_size = 16, p.blocks = context / 16;
  return p;
}

template <typename Body>
void for_each_decode(const Body& body) {
  for (int sequences : {1, 2, 8, 64, 256}) {
    for (int queries : {1, 2, 4, 9}) {
      for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {12, 12}, {32, 8}, {71, 1}, {24, 6}}) {
        for (int dim : {16, 64, 128, 256}) {
          for (int context : {16, 1024, 131072}) {
            SCOPED_TRACE(fmt::format("{} x {} queries, {} / {} heads of {}, {} keys", sequences, queries, heads,
                                     kv_heads, dim, context));
            body(paged(sequences, queries, heads, kv_heads, dim, context));
          }
        }
      }
    }
  }
}

TEST(ChooseDecode, SplitsCoverEveryRowAndTheContext) {
  for_each_decode([&](const PagedProblem& p) {
    const SplitDecodePlan plan = choose_decode(p, h200());
    expect_fits(plan.grid[0] * plan.grid[1] * plan.grid[2], 32 * kDecodeWarps, 0);
    EXPECT_EQ(plan.grid[0], p.sequences);
    EXPECT_GE(plan.grid[1] / p.kv_heads * kDecodeRows, std::min(kDecodeQueries, p.tokens) * p.group);
    EXPECT_EQ(plan.grid[2], plan.splits);
    EXPECT_LE(plan.splits, kMaxDecodeSplits);
    EXPECT_GE(plan.lanes * 8, p.dim);
    EXPECT_EQ(plan.scratch_bytes > 0, plan.splits > 1);
    PagedProblem twice = p;
    twice.sequences *= 2, twice.tokens *= 2;
    EXPECT_LE(choose_decode(twice, h200()).splits, plan.splits);
  });
}

// The kernels' own facts; the occupancy is what shared memory allows: 1 KiB of each block is the driver's, up to 3 KiB
// are static.
DecodeDesc decode_desc(const PagedProblem& p, const DecodeKernelFacts& kernel) {
  const auto blocks_per_sm = [](int64_t shared) {
    return static_cast<int>(kSharedBytesPerSm / (shared + (1 << 10) + (3 << 10)));
  };
  return {p, kernel, blocks_per_sm};
}

TEST(ChooseDecode, TensorCorePlansFitTheDevice) {
  for_each_decode([&](const PagedProblem& p) {
    for (DType cache : {DType::kBF16, DType::kE4M3, DType::kE5M2}) {
      const DecodeKernelFacts kernel = decode_kernel_facts(p, cache);
      for (const DecodePlan& plan : candidates(decode_desc(p, kernel), h200())) {
        expect_fits(plan.blocks, decode::kThreads, plan.shared);
        EXPECT_GE(plan.shared, kernel.ring_bytes);
        EXPECT_LE(plan.blocks, decode::kMaxBlocks);
        EXPECT_EQ(plan.groups << plan.head_shift, p.kv_heads) << "heads are left out";
        EXPECT_GE(plan.rows, 1);
        EXPECT_LE(plan.rows, kernel.rows);
        // Each block leaves at most two pieces of items that it shares with others.
        const int64_t rows = int64_t{2} * plan.blocks * plan.rows << plan.head_shift;
        EXPECT_GE(plan.parts_bytes, rows * kDecodePartialBytes);
        EXPECT_EQ(plan.scratch_bytes - plan.parts_bytes, rows * p.dim * 4);
      }
    }
  });
}

TEST(ChooseQuantize, EveryPlanCoversEveryRowAndColumn) {
  for (int64_t rows : kRows) {
    for (int64_t cols : {1, 8, 100, 768, 1024, 4096, 8192, 8200, 11008, 16384, 16392, 65536, 65544}) {
      for (ScaleLayout grouping :
           {ScaleLayout::kTensor, ScaleLayout::kRow, ScaleLayout::kRow128, ScaleLayout::kTile128}) {
        for (bool transposed : {false, true}) {
          SCOPED_TRACE(
              fmt::format("[{}, {}] grouping {} transposed {}", rows, cols, static_cast<int>(grouping), transposed));
          const QuantizePlan plan = choose_quantize({.rows = rows,
                                                     .cols = cols,
                                                     .grouping = grouping,
                                                     .transposed = transposed,
                                                     .row_vector = cols % kRowGroup == 0});
          EXPECT_GT(plan.grid, 0);
          EXPECT_GE(plan.across * kQuantizeTile, cols);
          if (plan.kernel == QuantizeKernel::kStream) {
            EXPECT_FALSE(transposed);
            EXPECT_GE(plan.grid * kStreamThreads * kStreamRuns * kStreamRun, rows * cols);
            continue;
          }
          EXPECT_GE(plan.grid / plan.across * kQuantizeTile, rows);
          EXPECT_EQ(plan.kernel == QuantizeKernel::kPerRow, grouping == ScaleLayout::kRow);
          if (plan.kernel != QuantizeKernel::kPerRow) continue;
          const PerRowPlan& per_row = plan.per_row;
          expect_fits(per_row.grid, per_row.threads, 0);
          EXPECT_EQ(per_row.grid, rows * per_row.cluster);
          EXPECT_LE(per_row.cluster, kMaxRowBlocks);
          if (per_row.held == 4) continue;  // the others have no second pass
          EXPECT_GE(int64_t{per_row.cluster} * per_row.threads * per_row.held * kRowGroup, cols);
        }
      }
    }
  }
}

TEST(BoundKernel, LabelsSayWhichKernelRunsAndWhatWasChosen) {
  BoundKernel kernel = [](const KernelArgs&) {};
  EXPECT_EQ(kernel.label("norm_fusion", {}), "norm_fusion");
  const NormPlan plan = choose(NormDesc{.rows = 8192, .cols = 4096, .adds = true}, h200());
  kernel.variant = [plan](const KernelArgs&) { return to_string(plan); };
  EXPECT_EQ(kernel.label("norm_fusion", {}), "norm_fusion[persistent, 2 rows, 3 stages]");
  kernel.fallback_kernel = "fusion_members";
  EXPECT_EQ(kernel.label("norm_fusion", {}), "fusion_members[persistent, 2 rows, 3 stages]");
}

// --- what is chosen for the shapes of models

struct Line {
  std::string what, choice, launch;
};

std::vector<Line> model_choices() {
  const DeviceFacts device = h200();
  std::vector<Line> lines;
  struct Norm {
    const char* model;
    int64_t rows, cols;
  };
  for (const Norm& norm : {Norm{"GPT-2 124M, training", 16384, 768},
                           {"GPT-2 XL, training", 16384, 1600},
                           {"Llama 2 7B, training", 8192, 4096},
                           {"Llama 2 13B, training", 8192, 5120},
                           {"Llama 2 70B, training", 8192, 8192},
                           {"Llama 2 7B, 1 token", 1, 4096},
                           {"Llama 2 7B, 64 tokens", 64, 4096},
                           {"Llama 2 7B, prefill of 2048", 2048, 4096}}) {
    const NormDesc desc{.rows = norm.rows, .cols = norm.cols, .adds = true};
    const std::string shape = fmt::format("{}, [{}, {}]", norm.model, norm.rows, norm.cols);
    const NormPlan plan = choose(desc, device);
    lines.push_back({"add, norm: " + shape, to_string(plan),
                     fmt::format("{} blocks of {} threads, {} bytes", plan.grid, plan.threads, plan.shared)});
    if (norm.rows < 8192) continue;
    const NormGradientPlan grad = choose_norm_gradient(desc, device);
    lines.push_back({"norm_grad, add: " + shape, to_string(grad),
                     fmt::format("{} blocks of {} threads, {} bytes", grad.blocks, grad.threads, grad.shared)});
  }
  struct Product {
    const char* model;
    int64_t n, k;
  };
  for (const Product& p : {Product{"GPT-2 124M, MLP down", 768, 3072},
                           {"Llama 2 7B, output", 4096, 4096},
                           {"Llama 2 7B, qkv", 12288, 4096},
                           {"Llama 2 7B, gate and up", 22016, 4096},
                           {"Llama 2 7B, MLP down", 4096, 11008},
                           {"Llama 3 8B, head", 128256, 4096}}) {
    for (DType dtype : {DType::kBF16, DType::kE4M3}) {
      const GemvPlan plan = choose(GemvDesc{.n = p.n, .k = p.k, .dtype = dtype}, device);
      lines.push_back({fmt::format("gemv {}: {}, N {}, K {}", dtype_name(dtype), p.model, p.n, p.k), to_string(plan),
                       fmt::format("{} x {} blocks of {} threads", plan.grid, plan.splits, 32 * plan.warps)});
    }
  }
  struct Decode {
    const char* model;
    int heads, kv_heads, dim;
  };
  for (const Decode& d : {Decode{"Llama 2 7B", 32, 32, 128}, {"Llama 3 8B", 32, 8, 128}, {"Falcon 7B", 71, 1, 64}}) {
    for (int sequences : {1, 64}) {
      const PagedProblem p = paged(sequences, 1, d.heads, d.kv_heads, d.dim, 4096);
      const DecodePlan plan = choose(decode_desc(p, decode_kernel_facts(p, DType::kBF16)), device);
      const std::string shape = fmt::format("{}, {} sequences", d.model, sequences);
      lines.push_back({"paged_attention, cache bf16: " + shape, to_string(plan), fmt::format("{} bytes", plan.shared)});
      const SplitDecodePlan f32 = choose_decode(p, device);
      lines.push_back({"paged_attention, f32: " + shape, to_string(f32),
                       fmt::format("{} x {} x {} blocks", f32.grid[0], f32.grid[1], f32.grid[2])});
    }
  }
  struct Matrix {
    const char* what;
    int64_t rows, cols;
  };
  for (const Matrix& m : {Matrix{"Llama 2 7B, training", 8192, 4096},
                          {"Llama 2 7B, 1 token", 1, 11008},
                          {"Llama 2 7B, 64 tokens", 64, 11008}}) {
    for (const auto& [name, grouping] : {std::pair{"tensor", ScaleLayout::kTensor},
                                         {"row", ScaleLayout::kRow},
                                         {"1x128", ScaleLayout::kRow128},
                                         {"128x128", ScaleLayout::kTile128}}) {
      const QuantizeDesc desc{.rows = m.rows, .cols = m.cols, .grouping = grouping, .row_vector = true};
      const QuantizePlan plan = choose_quantize(desc);
      const int64_t grid = plan.kernel == QuantizeKernel::kPerRow ? plan.per_row.grid : plan.grid;
      lines.push_back({fmt::format("quantize {}: {}, [{}, {}]", name, m.what, m.rows, m.cols), to_string(desc, plan),
                       fmt::format("{} blocks", grid)});
    }
  }
  return lines;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The file, from `heading` on; all of it without one.
void expect_file(const std::string& name, const std::string& heading, const std::string& expected) {
  const std::string path = source_dir() + "/" + name, text = contents(path);
  const size_t begin = heading.empty() ? 0 : std::min(text.find(heading), text.size());
  if (text.substr(begin) == expected) return;
  if (std::getenv("OCTET_UPDATE_GOLDENS") != nullptr) {
    std::ofstream(path) << text.substr(0, begin) << expected;
    return;
  }
  ADD_FAILURE() << name << " is out of date; run this test with OCTET_UPDATE_GOLDENS=1 if that is meant:\n" << expected;
}

TEST(ChooseGoldens, ChoicesForModelsAreTheCommittedOnes) {
  std::string text;
  for (const Line& line : model_choices()) text += fmt::format("{}: {}; {}\n", line.what, line.choice, line.launch);
  expect_file("tests/cuda/kernel_choices.txt", "", text);
}

TEST(Documents, KernelChoicesAreTheGeneratedOnes) {
  std::string text =
      "## Choices of CUDA kernels on an H200\n\n"
      "Made by `octet_cuda_support_test` of a CUDA build; profiles print the same words in brackets after a kernel's "
      "name.\n\n| op and shape | chosen |\n|---|---|\n";
  for (const Line& line : model_choices()) text += fmt::format("| {} | {} |\n", line.what, line.choice);
  expect_file("docs/support.md", "## Choices of CUDA kernels", text);
}

}  // namespace
}  // namespace octet::cuda
