// The Target of an H200, so that plans can be made without one; cuda_target() starts from it.
#include <array>

#include "ir/target.h"

namespace octet {
namespace {

// Microseconds of a step in bf16, fp8-tensor and fp8-block for linears that read one x, by `octet-bench timings
// --device cuda` on one H200 (docs/numerics.md says what is counted).
struct Measured {
  int64_t tokens, out, in, linears;
  std::array<double, 3> microseconds;
};
constexpr Measured kMeasured[] = {
    {2048, 384, 384, 3, {85.5, 123.6, 125.4}},        {2048, 384, 384, 1, {28.6, 49.9, 61.7}},
    {2048, 1536, 384, 1, {32.3, 47.2, 54.2}},         {2048, 384, 1536, 1, {35.9, 54.7, 66.6}},
    {2048, 1024, 384, 2, {59.5, 84.1, 92.3}},         {2048, 384, 1024, 1, {31.6, 49.4, 54.5}},
    {2048, 768, 768, 3, {104.7, 130.2, 157.7}},       {2048, 768, 768, 1, {35.4, 47.6, 59.7}},
    {2048, 3072, 768, 1, {60.5, 66.3, 81.7}},         {2048, 768, 3072, 1, {63.3, 73.9, 90.8}},
    {2048, 2048, 768, 2, {93.9, 104.6, 124.8}},       {2048, 768, 2048, 1, {47.3, 62.9, 69.7}},
    {2048, 1024, 1024, 3, {125.4, 147.3, 164.8}},     {2048, 1024, 1024, 1, {43.0, 55.1, 64.8}},
    {2048, 4096, 1024, 1, {86.5, 85.6, 96.9}},        {2048, 1024, 4096, 1, {89.3, 100.0, 114.4}},
    {2048, 2816, 1024, 2, {134.7, 144.8, 178.1}},     {2048, 1024, 2816, 1, {70.1, 92.7, 104.1}},
    {2048, 2048, 2048, 3, {279.1, 204.1, 260.7}},     {2048, 2048, 2048, 1, {91.0, 88.6, 96.6}},
    {2048, 8192, 2048, 1, {288.7, 191.1, 230.8}},     {2048, 2048, 8192, 1, {288.8, 186.8, 234.7}},
    {2048, 5504, 2048, 2, {412.1, 306.9, 351.2}},     {2048, 2048, 5504, 1, {217.3, 163.4, 202.4}},
    {2048, 4096, 4096, 3, {952.3, 627.2, 742.1}},     {2048, 4096, 4096, 1, {323.8, 309.0, 273.8}},
    {2048, 16384, 4096, 1, {1106.6, 618.7, 744.5}},   {2048, 4096, 16384, 1, {1114.9, 691.5, 830.1}},
    {2048, 11008, 4096, 2, {1541.8, 1051.5, 1198.7}}, {2048, 4096, 11008, 1, {785.9, 600.3, 579.3}},
    {8192, 384, 384, 3, {113.3, 158.4, 175.1}},       {8192, 384, 384, 1, {40.1, 48.2, 83.4}},
    {8192, 1536, 384, 1, {66.2, 82.1, 92.2}},         {8192, 384, 1536, 1, {73.6, 92.8, 110.1}},
    {8192, 1024, 384, 2, {106.4, 118.4, 154.9}},      {8192, 384, 1024, 1, {56.7, 84.2, 86.7}},
    {8192, 768, 768, 3, {213.7, 203.5, 259.4}},       {8192, 768, 768, 1, {69.7, 73.9, 95.4}},
    {8192, 3072, 768, 1, {170.5, 139.1, 173.7}},      {8192, 768, 3072, 1, {175.2, 157.8, 199.9}},
    {8192, 2048, 768, 2, {248.9, 220.3, 241.6}},      {8192, 768, 2048, 1, {127.6, 139.0, 150.5}},
    {8192, 1024, 1024, 3, {288.6, 262.0, 298.3}},     {8192, 1024, 1024, 1, {96.4, 99.1, 107.9}},
    {8192, 4096, 1024, 1, {290.1, 229.1, 249.1}},     {8192, 1024, 4096, 1, {291.4, 239.1, 263.0}},
    {8192, 2816, 1024, 2, {428.9, 329.3, 377.6}},     {8192, 1024, 2816, 1, {219.6, 199.8, 221.5}},
    {8192, 2048, 2048, 3, {952.7, 650.4, 736.9}},     {8192, 2048, 2048, 1, {314.5, 234.5, 221.5}},
    {8192, 8192, 2048, 1, {1122.5, 774.1, 835.6}},    {8192, 2048, 8192, 1, {1154.9, 680.1, 804.3}},
    {8192, 5504, 2048, 2, {1565.0, 1000.2, 1133.8}},  {8192, 2048, 5504, 1, {817.6, 545.7, 638.4}},
    {16384, 384, 384, 3, {154.1, 191.9, 249.3}},      {16384, 384, 384, 1, {51.2, 74.0, 103.2}},
    {16384, 1536, 384, 1, {102.5, 135.7, 131.9}},     {16384, 384, 1536, 1, {111.9, 157.0, 164.1}},
    {16384, 1024, 384, 2, {163.1, 189.1, 214.5}},     {16384, 384, 1024, 1, {86.3, 127.2, 128.5}},
    {16384, 768, 768, 3, {344.0, 303.5, 341.2}},      {16384, 768, 768, 1, {112.0, 138.3, 150.0}},
    {16384, 3072, 768, 1, {324.3, 243.8, 294.3}},     {16384, 768, 3072, 1, {332.1, 256.9, 333.2}},
    {16384, 2048, 768, 2, {457.1, 342.0, 397.2}},     {16384, 768, 2048, 1, {237.9, 217.4, 248.9}},
    {16384, 1024, 1024, 3, {512.2, 384.9, 462.7}},    {16384, 1024, 1024, 1, {168.6, 143.6, 182.3}},
    {16384, 4096, 1024, 1, {566.5, 368.1, 500.8}},    {16384, 1024, 4096, 1, {569.6, 470.8, 440.3}},
    {16384, 2816, 1024, 2, {814.7, 642.2, 711.8}},    {16384, 1024, 2816, 1, {423.5, 397.3, 354.5}},
    {32768, 384, 384, 3, {241.2, 254.3, 287.1}},      {32768, 384, 384, 1, {78.7, 102.1, 111.3}},
    {32768, 1536, 384, 1, {189.6, 184.5, 166.3}},     {32768, 384, 1536, 1, {194.2, 217.1, 216.6}},
    {32768, 1024, 384, 2, {276.9, 269.4, 217.2}},     {32768, 384, 1024, 1, {147.3, 204.1, 173.8}},
    {32768, 768, 768, 3, {615.8, 475.8, 626.0}},      {32768, 768, 768, 1, {205.1, 211.6, 217.4}},
    {32768, 3072, 768, 1, {653.0, 442.7, 540.4}},     {32768, 768, 3072, 1, {661.5, 549.1, 574.2}},
};

}  // namespace

Target h200_target() {
  Target target{.name = "h200",
                .device = Device::kCuda,
                .fp8_tn_only = true,
                .prefer_recompute = true,
                .vocab_multiple = 128,
                .fp8_alignment = 16,
                .buffer_alignment = 256,
                .workspace_bytes = int64_t{32} << 20,
                .memory_bytes = int64_t{143771} << 20,
                .bytes_per_second = 4.26e12,
                .link_bytes_per_second = 330e9,  // two GPUs by peer memory, 128 MiB a rank; 16 MiB: 250 to 275
                .link_latency = 5e-6,
                .node_devices = 8,
                .node_link_bytes_per_second = 45e9,  // not measured: an NDR adapter of 50 GB/s a GPU, less 10 %
                .node_link_latency = 20e-6,
                .bf16_flops = 700e12,
                .fp8_flops = 1280e12,
                .watts = 700,  // the board's limit
                .step = {.bf16 = 700e12,
                         .fp8 = 1270e12,
                         .fp8_block = 980e12,
                         .attention_forward = 590e12,
                         .attention_backward = 475e12,
                         .dropout_forward = 141e12,
                         .dropout_backward = 113e12,
                         .byte_dropout_forward = 319e12,
                         .byte_dropout_backward = 257e12,
                         .bytes_per_second = 3.9e12,
                         .kernel_seconds = 1e-6,
                         .beside = 0.3,
                         .step_seconds = 7e-4},
                .traits = kGpuTraits,
                .integer_products = {{DType::kI8, DType::kI8},
                                     {DType::kE4M3, DType::kI4, "wgmma_x8", 128, 128},
                                     {DType::kBF16, DType::kI4, "wgmma_x16", 128, 128}}};
  using enum FusionPart;
  target.allow(Producer::kNorm, {kResidual, kAmax, kQuantize, kRankSum});
  target.allow(Producer::kNormGrad, {kResidual, kAmax, kColumnSum});
  target.allow(Producer::kActivation, {kCore, kBias, kAmax, kQuantize, kColumns});
  target.allow(Producer::kActivationGrad, {kCore, kAmax, kQuantize, kColumnSum});
  target.allow(Producer::kGated, {kCore, kAmax, kQuantize, kColumns});
  target.allow(Producer::kGatedGrad, {kCore, kAmax, kQuantize});
  target.allow(Producer::kRope, {kAmax});
  target.allow(Producer::kPlain, {kAmax, kQuantize, kColumnSum, kScale});
  target.allow(Producer::kProduct, {kBias, kResidual, kAccumulate, kSiblings, kSlices, kRankRows});
  target.allow(Producer::kScatterRows, {kCore, kRope, kHeadNorm, kColumns});
  target.allow(Producer::kRouter, {kCore});
  target.allow(Producer::kAddend, {kCore, kColumns});
  target.allow(Producer::kUpdate, {kOptimizer, kUpdateScales, kMaximum});
  for (const auto& [tokens, out, in, linears, microseconds] : kMeasured) {
    constexpr std::array<const char*, 3> kPrecisions = {"bf16", "fp8-tensor", "fp8-block"};
    for (size_t i = 0; i < kPrecisions.size(); ++i)
      target.timings.push_back({kPrecisions[i], tokens, out, in, linears, 1e-6 * microseconds[i]});
  }
  return target;
}

}  // namespace octet
