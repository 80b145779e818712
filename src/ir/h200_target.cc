// The Target of an H200, so that plans can be made without one; cuda_target() starts from it.
#include <array>
#include <iterator>

#include "ir/target.h"

namespace octet {
namespace {

// What cuda::fusion_kinds() gives, in its order; a test of CUDA builds compares them.
constexpr const char* kCudaFusions[] = {"matmul_accumulate",
                                        "matmul_residual",
                                        "matmul_bias",
                                        "merge_siblings",
                                        "matmul_split",
                                        "read_parts",
                                        "add_norm",
                                        "add_norm_amax",
                                        "add_norm_quantize",
                                        "norm_quantize",
                                        "norm_amax",
                                        "norm_grad_add_bias_amax",
                                        "norm_grad_add_bias",
                                        "norm_grad_add_amax",
                                        "norm_grad_add",
                                        "bias_gelu_quantize",
                                        "bias_gelu_amax",
                                        "bias_gelu",
                                        "gelu_quantize",
                                        "gelu_grad_bias",
                                        "gelu_grad_bias_quantize",
                                        "gelu_grad_quantize",
                                        "gelu_grad_bias_amax",
                                        "gelu_grad_amax",
                                        "bias_grad_quantize",
                                        "bias_grad_amax",
                                        "swiglu_quantize",
                                        "swiglu_amax",
                                        "swiglu",
                                        "swiglu_grad",
                                        "swiglu_grad_quantize",
                                        "swiglu_grad_amax",
                                        "geglu_quantize",
                                        "relu_quantize",
                                        "adamw_group",
                                        "scale_quantize",
                                        "update_scales_group",
                                        "maximum_group",
                                        "rope_amax",
                                        "rope_kv_append",
                                        "kv_append_pair"};

// A linear layer y [tokens, out] = x [tokens, in] W^T: microseconds of its three products in bf16, fp8-tensor and
// fp8-block, quantizing included, by `octet-bench timings --device cuda` on one H200 (docs/numerics.md says what is
// counted).
struct Measured {
  int64_t tokens, out, in;
  std::array<double, 3> fprop, dgrad, wgrad;
};
constexpr Measured kMeasured[] = {
    {2048, 384, 384, {7.9, 19.9, 21.6}, {8.4, 20.0, 21.0}, {11.1, 20.3, 22.4}},
    {2048, 384, 1536, {10.6, 22.5, 23.3}, {10.7, 22.8, 24.3}, {11.6, 23.0, 26.5}},
    {2048, 768, 768, {10.9, 21.6, 23.6}, {10.8, 21.5, 22.6}, {11.6, 22.8, 25.2}},
    {2048, 1536, 384, {11.0, 22.5, 24.1}, {10.9, 22.8, 23.3}, {11.5, 22.9, 26.9}},
    {2048, 768, 3072, {18.8, 28.6, 30.8}, {20.7, 31.9, 32.5}, {20.2, 28.9, 38.4}},
    {2048, 3072, 768, {20.7, 29.2, 32.7}, {19.3, 28.9, 30.7}, {20.3, 28.7, 37.7}},
    {2048, 2048, 2048, {29.0, 33.8, 34.7}, {28.4, 34.9, 34.3}, {29.2, 34.6, 41.9}},
    {2048, 2048, 8192, {88.6, 79.9, 85.6}, {93.4, 81.3, 84.9}, {95.6, 83.6, 108.7}},
    {2048, 4096, 4096, {90.0, 75.9, 82.7}, {91.3, 79.9, 82.5}, {96.2, 81.1, 104.5}},
    {2048, 8192, 2048, {89.6, 74.9, 85.0}, {88.5, 80.8, 85.2}, {95.2, 82.8, 108.1}},
    {2048, 4096, 16384, {337.2, 250.5, 281.7}, {347.6, 255.2, 274.8}, {363.2, 258.4, 339.4}},
    {2048, 8192, 8192, {343.8, 243.7, 275.4}, {358.8, 255.2, 274.6}, {365.6, 252.5, 334.8}},
    {2048, 16384, 4096, {345.5, 239.8, 274.3}, {341.8, 264.1, 281.2}, {358.9, 256.1, 338.3}},
    {2048, 16384, 16384, {1385.1, 918.5, 1038.6}, {1414.4, 959.1, 1039.5}, {1440.3, 932.2, 1215.5}},
    {8192, 384, 384, {10.4, 22.3, 26.4}, {10.8, 23.4, 25.2}, {14.2, 26.2, 30.2}},
    {8192, 384, 1536, {19.1, 31.1, 33.8}, {21.7, 34.5, 35.7}, {29.2, 35.8, 44.5}},
    {8192, 768, 768, {20.5, 29.0, 34.0}, {20.8, 31.9, 33.0}, {25.9, 33.3, 41.4}},
    {8192, 1536, 384, {21.5, 31.8, 36.9}, {19.9, 31.9, 33.4}, {25.0, 37.4, 43.6}},
    {8192, 768, 3072, {57.1, 59.2, 65.2}, {56.8, 58.4, 63.2}, {58.9, 58.1, 92.1}},
    {8192, 3072, 768, {56.2, 50.6, 63.4}, {55.8, 62.1, 64.0}, {59.9, 60.0, 92.1}},
    {8192, 2048, 2048, {93.2, 73.3, 84.2}, {93.4, 79.3, 83.8}, {91.9, 78.3, 103.1}},
    {8192, 2048, 8192, {347.4, 240.9, 271.6}, {350.4, 241.6, 256.4}, {359.5, 249.4, 333.1}},
    {8192, 4096, 4096, {356.2, 220.7, 255.9}, {356.6, 234.7, 255.7}, {352.1, 239.3, 322.4}},
    {8192, 8192, 2048, {336.0, 209.2, 255.3}, {346.2, 247.1, 269.8}, {350.7, 247.4, 329.2}},
    {8192, 4096, 16384, {1382.5, 843.8, 961.4}, {1392.5, 839.2, 906.3}, {1422.8, 861.0, 1154.9}},
    {8192, 8192, 8192, {1368.8, 806.9, 910.2}, {1421.1, 835.9, 911.9}, {1454.5, 844.9, 1133.5}},
    {8192, 16384, 4096, {1355.5, 764.1, 904.8}, {1379.9, 886.5, 956.7}, {1427.9, 852.2, 1151.1}},
    {8192, 16384, 16384, {6423.3, 3102.9, 3770.0}, {6565.5, 3431.0, 3881.4}, {6425.6, 3479.8, 5307.8}},
    {32768, 384, 384, {22.2, 35.0, 42.0}, {22.3, 38.1, 41.9}, {27.7, 41.2, 46.4}},
    {32768, 384, 1536, {59.0, 74.2, 82.5}, {58.1, 69.6, 79.7}, {63.1, 80.3, 104.2}},
    {32768, 768, 768, {58.0, 62.1, 76.7}, {58.1, 68.7, 75.6}, {63.6, 74.8, 97.0}},
    {32768, 1536, 384, {58.6, 61.2, 79.4}, {59.9, 78.5, 82.3}, {66.1, 82.7, 104.2}},
    {32768, 768, 3072, {205.6, 174.7, 201.2}, {197.1, 171.8, 189.8}, {207.8, 180.1, 278.7}},
    {32768, 3072, 768, {197.8, 143.7, 191.0}, {205.1, 185.0, 201.6}, {204.3, 185.8, 276.7}},
    {32768, 2048, 2048, {342.1, 227.6, 279.3}, {342.3, 252.4, 278.1}, {339.0, 261.2, 347.6}},
    {32768, 2048, 8192, {1393.3, 857.1, 999.4}, {1361.5, 851.9, 940.4}, {1446.0, 919.8, 1240.0}},
    {32768, 4096, 4096, {1372.9, 781.0, 931.4}, {1374.1, 837.2, 931.2}, {1445.2, 912.4, 1203.6}},
    {32768, 8192, 2048, {1337.7, 756.1, 939.4}, {1399.8, 890.3, 998.0}, {1434.9, 929.5, 1240.1}},
    {32768, 4096, 16384, {6368.5, 3292.1, 3853.1}, {6382.0, 3388.3, 3831.0}, {6575.5, 3407.9, 5312.5}},
    {32768, 8192, 8192, {6417.9, 3238.2, 3491.9}, {6369.2, 3392.9, 3491.4}, {6485.8, 3412.7, 4819.2}},
    {32768, 16384, 4096, {6314.8, 2899.3, 3485.5}, {6309.9, 3261.5, 3635.6}, {6369.5, 3277.6, 4593.6}},
};

}  // namespace

Target h200_target() {
  Target target{.name = "h200",
                .device = Device::kCuda,
                .fusions = {std::begin(kCudaFusions), std::end(kCudaFusions)},
                .fp8_tn_only = true,
                .cheap_activations = true,
                .vocab_multiple = 128,
                .fp8_alignment = 16,
                .buffer_alignment = 256,
                .workspace_bytes = int64_t{32} << 20,
                .memory_bytes = int64_t{143771} << 20,
                .bytes_per_second = 4.26e12,
                .bf16_flops = 700e12,
                .fp8_flops = 1280e12};
  for (const Measured& layer : kMeasured) {
    const auto [tokens, out, in, fprop, dgrad, wgrad] = layer;
    constexpr std::array<const char*, 3> kPrecisions = {"bf16", "fp8-tensor", "fp8-block"};
    for (size_t i = 0; i < kPrecisions.size(); ++i) {
      target.timings.push_back({kPrecisions[i], tokens, out, in, 1e-6 * fprop[i], "fprop"});
      target.timings.push_back({kPrecisions[i], tokens, in, out, 1e-6 * dgrad[i], "dgrad"});
      target.timings.push_back({kPrecisions[i], out, in, tokens, 1e-6 * wgrad[i], "wgrad"});
    }
  }
  return target;
}

}  // namespace octet
