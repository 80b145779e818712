// The products of a GPT-3 5B layer (hidden 4096, inner 16384): forward and both gradients over 8192 and 16384 tokens;
// forward over 16 and 128 tokens, as in decoding, with a scale per token; int8 beside FP8, and weights of four bits.
#include "kernels/cuda/bench_cases.h"

namespace octet::cuda {
namespace {

using cpu::Case;
using cpu::normal;

constexpr DType kE4M3 = DType::kE4M3, kE5M2 = DType::kE5M2, kBF16 = DType::kBF16, kF32 = DType::kF32;

struct Role {
  const char* name;
  int64_t m, n, k;
};

Case bf16_product(const Role& role, const std::string& name) {
  const std::string kind = role.name;
  const bool wgrad = kind == "wgrad", fprop = kind == "fprop";
  Case c{.op = Op::kMatmul,
         .name = name,
         .inputs = {normal(kBF16, wgrad ? Shape{role.k, role.m} : Shape{role.m, role.k}),
                    normal(kBF16, fprop ? Shape{role.n, role.k} : Shape{role.k, role.n})},
         .attrs = {{"trans_a", wgrad}, {"trans_b", fprop}, {"role", kind}},
         .dtypes = {kBF16}};
  if (wgrad) c.inputs.push_back(normal(kF32, {role.m, role.n})), c.attrs.set("to", std::string("f32"));
  return c;
}

cpu::CaseInput ones(Shape shape) {
  return {.dtype = kF32, .shape = std::move(shape), .fill = [](Philox&, auto&) {}};
}

// Codes are K-contiguous on both sides; weights have 128x128 blocks under block scaling, tokens 1x128.
Case fp8_product(const Role& role, const std::string& name, bool block) {
  const std::string kind = role.name;
  const bool wgrad = kind == "wgrad", fprop = kind == "fprop";
  const auto scale = [&](const char* scaling, int64_t rows) {
    const int64_t blocks = role.k / 128;
    if (!block) return ones({1});
    return ones(scaling == std::string("1x128") ? Shape{blocks, rows} : Shape{rows / 128, blocks});
  };
  const char *scaling_a = block ? "1x128" : "tensor", *scaling_b = !block ? "tensor" : wgrad ? "1x128" : "128x128";
  Case c{.op = Op::kScaledMatmul,
         .name = name,
         .inputs = {normal(fprop || block ? kE4M3 : kE5M2, {role.m, role.k}), scale(scaling_a, role.m),
                    normal(kE4M3, {role.n, role.k}), scale(scaling_b, role.n)},
         .attrs = {{"trans_b", true},
                   {"role", kind},
                   {"scaling_a", std::string(scaling_a)},
                   {"scaling_b", std::string(scaling_b)},
                   {"to", std::string(wgrad ? "f32" : "bf16")}},
         .dtypes = {kE4M3}};
  if (wgrad) c.inputs.push_back(normal(kF32, {role.m, role.n}));
  return c;
}

}  // namespace

std::vector<Case> matmul_bench_cases() {
  struct Linear {
    const char* name;
    int64_t out, in;
  };
  std::vector<Case> cases;
  for (const int64_t tokens : {8192, 16384}) {
    for (const Linear& linear : {Linear{"qkv", 12288, 4096}, Linear{"proj", 4096, 4096}, Linear{"up", 16384, 4096},
                                 Linear{"down", 4096, 16384}}) {
      for (const Role& role :
           {Role{"fprop", tokens, linear.out, linear.in}, Role{"dgrad", tokens, linear.in, linear.out},
            Role{"wgrad", linear.out, linear.in, tokens}}) {
        const std::string name = fmt::format("{}_{}_{}", tokens, linear.name, role.name);
        cases.push_back(bf16_product(role, name));
        cases.push_back(fp8_product(role, name + "_tensor", false));
        cases.push_back(fp8_product(role, name + "_block", true));
      }
    }
  }
  for (const int64_t tokens : {16, 128}) {
    for (const Role& role : {Role{"fprop", tokens, 16384, 4096}, Role{"fprop", tokens, 4096, 16384}}) {
      const std::string name = fmt::format("{}x{}x{}", role.m, role.n, role.k);
      cases.push_back(bf16_product(role, name));
      Case rows = fp8_product(role, name + "_row", false);
      rows.inputs[1] = ones({role.m});
      rows.attrs.set("scaling_a", std::string("row"));
      cases.push_back(rows);
    }
  }
  for (const int64_t tokens : {1, 8}) {  // decoding, of an 8B Llama: q, k and v in one product
    for (const Role& role : {Role{"fprop", tokens, 4096, 4096}, Role{"fprop", tokens, 6144, 4096},
                             Role{"fprop", tokens, 14336, 4096}, Role{"fprop", tokens, 4096, 14336}}) {
      const std::string name = fmt::format("{}x{}x{}", role.m, role.n, role.k);
      cases.push_back(bf16_product(role, name));
      cases.push_back(fp8_product(role, name + "_tensor", false));
      Case rows = fp8_product(role, name + "_rows", false);
      rows.inputs[1] = ones({role.m}), rows.inputs[3] = ones({role.n});
      rows.attrs.set("scaling_a", std::string("row")), rows.attrs.set("scaling_b", std::string("row"));
      cases.push_back(rows);
      cases.push_back(fp8_product(role, name + "_block", true));
    }
  }
  // Of a Llama-2-7B, as they are merged: int8 beside e4m3, both with a scale a row.
  for (const int64_t tokens : {1, 8, 16, 64, 128, 512, 1024, 2048, 16384}) {
    for (const Role& role : {Role{"fprop", tokens, 12288, 4096}, Role{"fprop", tokens, 4096, 4096},
                             Role{"fprop", tokens, 22016, 4096}, Role{"fprop", tokens, 4096, 11008}}) {
      for (const DType codes : {DType::kI8, kE4M3}) {
        Case c = fp8_product(role, fmt::format("{}x{}x{}_w8a8_{}", role.m, role.n, role.k, dtype_name(codes)), false);
        c.inputs[0] = cpu::uniform(codes, {role.m, role.k}, -100, 100), c.inputs[1] = ones({role.m});
        c.inputs[2] = cpu::uniform(codes, {role.n, role.k}, -100, 100), c.inputs[3] = ones({role.n});
        c.attrs.set("scaling_a", std::string("row")), c.attrs.set("scaling_b", std::string("row"));
        cases.push_back(c);
      }
    }
  }
  // Weights of four bits by groups of 128, of an 8B Llama, beside FP8's: constants, as in a model.
  const auto add = [&](Case c) {
    for (size_t i = 2; i < c.inputs.size(); ++i) c.inputs[i].constant = true;
    cases.push_back(std::move(c));
  };
  for (const int64_t tokens : {1, 16, 64, 512, 2048}) {
    for (const Role& role :
         {Role{"fprop", tokens, 28672, 4096}, Role{"fprop", tokens, 14336, 4096}, Role{"fprop", tokens, 4096, 14336}}) {
      Case fp8 = fp8_product(role, fmt::format("{}x{}x{}_beside_int4", role.m, role.n, role.k), false);
      fp8.inputs[1] = ones({role.m}), fp8.inputs[3] = ones({role.n});
      fp8.attrs.set("scaling_a", std::string("row")), fp8.attrs.set("scaling_b", std::string("row"));
      add(fp8);
      for (const char* kind : {"e4m3", "e4m3_zeros", "bf16"}) {
        const DType x = kind == std::string_view("bf16") ? kBF16 : kE4M3;
        Case c = fp8_product(role, fmt::format("{}x{}x{}_int4_{}", role.m, role.n, role.k, kind), false);
        c.inputs[0] = normal(x, {role.m, role.k});
        c.inputs[2] = {.dtype = DType::kI4, .shape = {role.n, role.k}, .fill = [](Philox&, auto&) {}};
        c.inputs[3] = ones({role.k / 128, role.n});
        if (kind == std::string_view("e4m3_zeros")) {
          c.inputs.push_back(cpu::absent());
          c.inputs.push_back(cpu::integers(DType::kI8, {role.k / 128, role.n}, -8, 8));
        }
        if (x == kE4M3) c.inputs[1] = ones({role.m}), c.attrs.set("scaling_a", std::string("row"));
        c.attrs.set("scaling_b", std::string("1x128"));
        c.attrs.set("order", std::string(x == kE4M3 ? "wgmma_x8" : "wgmma_x16"));
        add(c);
      }
    }
  }
  return cases;
}

}  // namespace octet::cuda
